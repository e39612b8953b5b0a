"""EVICT: what goes when room is needed, and that it is forgotten first."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kvproof.histories.build import History
from kvproof.histories.directed.pool import tokens
from kvproof.oracle.lru import LruCounter
from kvproof.records import Case

PREFIX = ("prefix",)
EXACT = (*PREFIX, "evict:lru-tail", "lookahead:0", "watermark:0")
"""Hits are counted to the block: nothing else may take one, and none is kept back."""


def cases() -> Iterator[Case]:
    yield from _referenced()
    yield from _identity()
    yield from _never_starves()
    yield from _order()


def _order() -> Iterator[Case]:
    yield (
        History().add(0, tokens(7)).free(0).add(1, tokens(3, 50)).free(1)
        .add(2, tokens(7), expect={"value": 4}).free(2)
        .case("evict/tail-before-head", "EVICT-003", 4, 2, needs=EXACT,
            note="one block has to go: without the tail two blocks are hit, without the head none")
    )
    yield (
        History().add(0, tokens(3)).free(0).add(1, tokens(3, 50)).free(1).add(2, tokens(3)).free(2)
        .add(3, tokens(3, 70)).free(3).add(4, tokens(3), expect={"value": 2}).free(4)
        .case("evict/used-last-stays", "EVICT-003", 3, 2, needs=("prefix", "evict:lru"),
            note="one of two cached blocks has to go: FIFO and MRU take the one that was hit last")
    )
    yield lru_trace(seed=3, capacity=9, block_size=2, requests=60)
    yield lru_trace(seed=4, capacity=16, block_size=4, requests=60)
    yield lru_trace(seed=5, capacity=4, block_size=2, requests=60)


def _referenced() -> Iterator[Case]:
    yield (
        History().add(0, tokens(5)).add(1, tokens(5)).free(1).add(2, tokens(4, 50)).append(2, 9)
        .append(0, 8).add(3, tokens(2, 70), expect={"outcome": ["ok", "OutOfBlocks"]}).append(0, 7)
        .free(0, 2)
        .case("evict/read-by-another", "EVICT-001", 7, 2, needs=PREFIX,
            stands_for=("POOL-002", "POOL-001"),
            note="a cached block is evicted though a live sequence reads it")
    )
    yield (
        History().add(0, tokens(5)).free(0).add(1, tokens(5)).add(2, tokens(3, 50)).append(1, 9).free(1)
        .add(3, tokens(5)).free(2, 3).reclaim()
        .case("evict/hit-leaves-the-queue", "EVICT-001", 5, 2, needs=PREFIX,
            stands_for=("POOL-001", "POOL-002", "TABLE-002"),
            note="a hit block stays in the evictable queue and is counted as both")
    )


def _identity() -> Iterator[Case]:
    yield (
        History().add(0, [1, 1, 5, 5, 9]).free(0).add(1, [2, 2, 5, 5, 9]).free(1)
        .add(2, [1, 1, 5, 5, 9]).free(2)
        .case("evict/reused-block-forgotten", "EVICT-002", 3, 2, needs=PREFIX,
            note="the old key of a block that was taken again still finds it")
    )
    yield (
        History().add(0, [1, 1, 5, 5]).free(0).add(1, [2, 2, 5, 5]).free(1).add(2, [1, 1, 5, 5])
        .append(2, 9).free(2)
        .case("evict/reused-block-forgotten-whole-prompts", "EVICT-002", 3, 2, needs=PREFIX)
    )
    yield (
        History().add(0, [1, 1, 5, 5]).free(0).add(1, [2, 2, 5, 5]).free(1).add(2, [1, 1, 5, 5, 9])
        .free(2)
        .case("evict/tail-reused-by-its-equal", "EVICT-002", 3, 2, needs=PREFIX,
            note="the tail of A is taken for B, whose tail has the same tokens; the head of A is still cached")
    )
    for pool in (3, 4, 5):
        h = History()
        for seq, head in enumerate((1, 2, 3, 1, 2, 3, 1)):
            h.add(seq, [head, head, 5, 5, 6, 6][:2 * pool - 2]).free(seq)
        yield (
            h
            .case(f"evict/rotating-heads-{pool}", "EVICT-002", pool, 2, needs=PREFIX,
                note="one tail block behind several heads in a pool that holds one of them")
        )
    yield (
        History().add(0, tokens(5)).append(0, 6).free(0).add(1, tokens(6, 50)).free(1).add(2, tokens(5))
        .append(2, 7).add(3, tokens(2, 90), expect={"outcome": ["ok", "OutOfBlocks"]}).free(2)
        .case("evict/recycled-in-turn", "EVICT-002", 4, 2, needs=PREFIX)
    )
    h = History()
    for seq in range(200):
        h.add(seq, tokens(3, 10 * seq + 1)).free(seq)
    for seq in (0, 40, 80, 120, 160, 190):
        h.add(200 + seq, tokens(3, 10 * seq + 1)).free(200 + seq)
    yield (
        h
        .case("evict/many-prompts-through-few-blocks", "EVICT-002", 4, 2, needs=PREFIX,
            note="identities stop being cleared after many evictions: early prompts find reused blocks")
    )


def _never_starves() -> Iterator[Case]:
    h = History()
    for seq in range(6):
        h.add(seq, tokens(4, 20 * seq + 1), expect={"outcome": "ok"}).free(seq)
    yield (
        h.add(9, tokens(8, 300), expect={"outcome": "ok"}).free(9)
        .case("evict/full-cache-admits", "EVICT-004", 4, 2, needs=PREFIX, stands_for=("POOL-003",),
            note="an idle engine admits nothing: every block is pinned by the cache")
    )
    h = History().add(50, tokens(2, 900))
    for seq in range(5):
        h.add(seq, tokens(4, 20 * seq + 1), expect={"outcome": "ok"}).free(seq)
    yield (
        h.append(50, 7, expect={"outcome": "ok"}).append(50, 8, expect={"outcome": "ok"}).free(50)
        .case("evict/append-into-full-cache", "EVICT-004", 4, 2, needs=PREFIX, stands_for=("POOL-003",))
    )
    yield (
        History().add(0, tokens(4)).free(0).add(1, tokens(4, 50)).free(1).add(2, tokens(4))
        .add(3, tokens(4, 70), expect={"outcome": "ok"}).free(2, 3)
        .add(4, tokens(8, 90), expect={"outcome": "ok"}).free(4).reclaim()
        .case("evict/victims-between-readers", "EVICT-005", 4, 2, needs=PREFIX,
            stands_for=("POOL-001", "POOL-002", "POOL-003", "EVICT-001", "EVICT-004", "TABLE-001", "TABLE-002"),
            note="victims that are skipped, being read, count as freed")
    )
    yield (
        History().add(0, tokens(3)).free(0).add(1, tokens(3, 20)).free(1).add(2, tokens(3, 40)).free(2)
        .add(3, tokens(3)).add(4, tokens(3, 40)).add(5, tokens(2, 60), expect={"outcome": "ok"})
        .free(3, 4, 5).add(6, tokens(12, 80), expect={"outcome": "ok"}).free(6)
        .case("evict/skips-do-not-count", "EVICT-005", 6, 2, needs=PREFIX,
            stands_for=("POOL-001", "POOL-002", "POOL-003", "EVICT-001", "EVICT-004", "TABLE-001", "TABLE-002"))
    )


def lru_trace(seed: int, capacity: int, block_size: int, requests: int) -> Case:
    """Requests one after another whose hits are counted by the harness's own LRU, tail first."""
    draw = random.Random(seed)
    counter = LruCounter(capacity)
    known: list[list[int]] = [[0]]
    h = History()
    fresh = 100
    for seq in range(requests):
        path = list(draw.choice(known))
        path = path[: draw.randint(1, len(path))]
        while len(path) < draw.randint(1, 4):
            fresh += 1
            path.append(fresh)
        known = [*known[-8:], path]
        prompt = [1000 + b * block_size + i for b in path for i in range(block_size)]
        hit = counter.request([tuple(path[:i + 1]) for i in range(len(path))])
        h.add(seq, [*prompt, 7], expect={"value": hit * block_size}).free(seq)
    return h.case(
        f"evict/lru-trace-{seed}",
        "EVICT-003",
        capacity + 1,
        block_size,
        needs=EXACT,
        seed=seed,
        note="FIFO under LRU's name, or the head evicted before the tail, gives other hits",
    )

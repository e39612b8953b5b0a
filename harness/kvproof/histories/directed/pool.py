"""POOL, FREE: blocks are conserved, handed out once and all come back."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.histories.build import History
from kvproof.records import Case


def tokens(n: int, start: int = 1) -> list[int]:
    """n different tokens."""
    return list(range(start, start + n))


def cases() -> Iterator[Case]:
    yield from _conservation()
    yield from _one_place()
    yield from _atomic()
    yield from _whole()
    yield from _releases()
    yield from _raw()


def _conservation() -> Iterator[Case]:
    for size in (2, 4, 16):
        yield (
            History().add(0, tokens(2 * size + 1)).add(1, tokens(size, 100)).append(0, 7).append(1, 8)
            .free(0).add(2, tokens(3 * size, 200)).free(1, 2).reclaim()
            .case(f"pool/add-append-free-{size}", "POOL-001", 8, size,
                note="counts after every call of a plain life")
        )
    h = History().add(0, tokens(6))
    for i in range(3):
        h.op("append", seq=0, tokens=(90 + i, 91, 92, 93, 94, 95))
    yield (
        h.free(0).reclaim()
        .case("pool/failed-append-leaks", "POOL-001", 4, 2, needs=("multi", "defer"),
            note="an append of several tokens fails half way; what it had taken is lost")
    )
    h = History().add(0, tokens(7))
    for _ in range(3):
        h.add(1, tokens(6, 50), expect={"outcome": ["OutOfBlocks", "Refused"]})
    yield (
        h.free(0).reclaim()
        .case("pool/failed-add-leaks", ("POOL-001", "POOL-004"), 5, 2,
            note="an add that does not fit, again and again")
    )
    h = History()
    for seq, start in ((0, 1), (1, 20), (2, 40), (3, 60)):
        h.add(seq, tokens(4, start)).free(seq)
    yield (
        h.reclaim().add(5, tokens(8, 80)).free(5).reclaim()
        .case("pool/reported-free-can-be-had", "POOL-003", 4, 2,
            note="different prompts one after another fill the cache; lost blocks often still count as evictable")
    )
    yield (
        History().add(0, tokens(5)).add(1, tokens(5)).free(0).free(1).add(2, tokens(5)).free(2)
        .reclaim()
        .case("pool/equal-prompts-reclaim", "POOL-003", 6, 2,
            note="blocks of equal prompts drop out of the pool while the counter still counts them")
    )
    yield (
        History().add(0, tokens(7)).add(1, tokens(4, 50)).append(0, 9)
        .append(0, 10, expect={"outcome": ["OutOfBlocks", "Refused"]})
        .append(1, 11, expect={"outcome": ["OutOfBlocks", "Refused"]}).free(0, 1)
        .case("pool/zero-new-blocks", "POOL-006", 6, 2,
            note="an append that fits the last block of a full pool needs nothing and succeeds")
    )
    yield (
        History().add(0, tokens(5)).append(0, 9).add(1, tokens(1, 60)).append(1, 61).reclaim()
        .free(0, 1)
        .case("pool/append-inside-a-block", "POOL-006", 8, 2,
            note="no block for a token that fits the last one")
    )


def _one_place() -> Iterator[Case]:
    yield (
        History().add(0, tokens(5)).add(1, tokens(5)).free(0).add(2, tokens(4, 50)).append(1, 9)
        .add(3, tokens(2, 70)).free(1, 2, 3).reclaim()
        .case("pool/shared-block-freed-once", "POOL-002", 7, 2, needs=("prefix",),
            note="the first release of a shared block queues it though a second owner reads it")
    )
    yield (
        History().add(0, tokens(5)).fork(0, 1).free(0).add(2, tokens(4, 50)).append(1, 9).free(1, 2)
        .reclaim()
        .case("pool/forked-block-freed-once", "POOL-002", 7, 2)
    )
    yield (
        History().add(0, tokens(3)).add(1, tokens(3, 20)).free(0).add(2, tokens(3, 40))
        .add(3, tokens(3, 60)).free(2).add(4, tokens(3, 80)).reclaim().free(1, 3, 4).reclaim()
        .case("pool/churn", ("POOL-002", "POOL-001"), 6, 2,
            note="blocks change hands on a nearly full pool")
    )


def _atomic() -> Iterator[Case]:
    yield (
        History().add(0, tokens(3)).op("append", seq=0, tokens=tokens(9, 50)).append(0, 7).free(0)
        .reclaim()
        .case("pool/append-too-much", "POOL-004", 3, 2, needs=("multi", "defer"),
            note="nine tokens into room for three: nothing is kept")
    )
    yield (
        History().add(0, tokens(4)).free(0).add(1, tokens(2, 50))
        .add(2, [*tokens(4), *tokens(5, 80)], expect={"outcome": ["OutOfBlocks", "Refused"]})
        .op("match", tokens=[*tokens(4), 99]).free(1).add(3, [*tokens(4), 99]).free(3).reclaim()
        .case("pool/failed-add-with-hit", "POOL-004", 4, 2, needs=("prefix",),
            stands_for=("POOL-001", "SHARE-007"),
            note="the hit blocks were referenced before the capacity test; the references stay")
    )
    yield (
        History().add(0, tokens(2)).free(0).add(1, tokens(6, 50))
        .add(2, [*tokens(2), *tokens(10, 80)], expect={"outcome": ["OutOfBlocks", "Refused"]})
        .add(3, [*tokens(2), 99]).free(1, 3).reclaim()
        .case("pool/failed-add-keeps-the-cache", "POOL-004", 8, 2, needs=("prefix",),
            stands_for=("POOL-001", "SHARE-007", "PREFIX-001"),
            note="an add that does not fit empties the cache before it gives up")
    )
    yield (
        History().add(0, tokens(2)).free(0).add(1, tokens(6, 50))
        .op("match", tokens=[*tokens(2), 99], expect={"value": 2})
        .add(2, [*tokens(2), *tokens(10, 80)], expect={"outcome": ["OutOfBlocks", "Refused"]})
        .op("match", tokens=[*tokens(2), 99], expect={"value": 2}).free(1)
        .case("pool/failed-add-keeps-the-match", "POOL-004", 8, 2, needs=("prefix",),
            note="what could be matched before a failed add is matched after it")
    )


def _whole() -> Iterator[Case]:
    yield (
        History().add(0, tokens(5)).fork(0, 1).append(0, 8).append(1, 9).append(1, 10).free(0, 1)
        .reclaim()
        .case("pool/whole-after-fork", "POOL-008", 8, 2, note="a copied block is forgotten")
    )
    yield (
        History().add(0, tokens(9)).append(0, 8).truncate(0, 3).append(0, 9).free(0).reclaim()
        .case("pool/whole-after-truncate", "POOL-008", 8, 2)
    )
    h = History()
    for round_ in range(4):
        h.add(round_, tokens(5)).append(round_, 70 + round_).free(round_)
    yield (
        h.reclaim()
        .case("pool/whole-after-repeats", "POOL-008", 6, 2, note="one prompt again and again")
    )
    yield (
        History().add(0, tokens(4)).add(1, tokens(3, 30)).free(1).free(0).reclaim()
        .case("pool/whole-after-all", "POOL-008", 5, 2)
    )


def _releases() -> Iterator[Case]:
    yield (
        History().add(0, tokens(3)).add(1, tokens(3, 50)).free(0).free(0, args={"unknown": True})
        .add(2, tokens(3, 70)).reclaim().free(1, 2).free(2, args={"unknown": True}).reclaim()
        .case("free/twice", "FREE-001", 6, 2, stands_for=("POOL-001", "POOL-002", "POOL-003"),
            note="free the same sequence twice, then allocate twice")
    )
    yield (
        History().add(0, tokens(3)).add(1, tokens(3)).free(0).free(0, args={"unknown": True})
        .add(2, tokens(4, 50)).append(1, 9).free(1, 2).reclaim()
        .case("free/twice-shared", "FREE-001", 7, 2, needs=("prefix",),
            stands_for=("POOL-001", "POOL-002"),
            note="a second free drops the reference of the other owner")
    )
    yield (
        History().add(0, tokens(5), commit=False).free(0).add(1, tokens(5), commit=False).commit(1, 2)
        .free(1).reclaim()
        .case("free/part-computed", "FREE-004", 6, 2, stands_for=("POOL-001", "POOL-003", "PREFIX-006"),
            note="a sequence that ends before its prompt is computed gives everything back and publishes nothing")
    )
    yield (
        History().add(0, tokens(5)).free(0).add(1, [*tokens(5), 9, 9], commit=False).free(1)
        .add(2, tokens(5)).free(2).reclaim()
        .case("free/matched-not-computed", "FREE-004", 6, 2, needs=("prefix",),
            stands_for=("POOL-001", "POOL-003", "SHARE-007"),
            note="freed between the hit and the first compute")
    )
    yield (
        History().add(0, tokens(5)).add(1, tokens(3, 50)).op("swap_out", seq=0).free(0)
        .add(2, tokens(4, 70)).op("swap_out", seq=1).op("swap_out", seq=2).free(1).op("swap_in", seq=2)
        .free(2).reclaim().add(3, tokens(5, 90)).op("swap_out", seq=3).op("swap_in", seq=3).free(3)
        .reclaim()
        .case("free/while-swapped", "FREE-004", 6, 2,
            stands_for=("POOL-001", "POOL-003", "SWAP-001", "SWAP-002"),
            note="abort while swapped out leaks on the device or on the host")
    )
    h = History()
    for seq in range(4):
        h.add(seq, tokens(9, 20 * seq + 1)).op("swap_out", seq=seq, expect={"outcome": "ok"}).free(seq)
    yield (
        h.reclaim()
        .case("free/host-blocks-come-back", "FREE-004", 6, 2, needs=("swap", "copies"),
            note="the host tier fills up with blocks of sequences that were freed while swapped out")
    )


def _raw() -> Iterator[Case]:
    yield (
        History().op("alloc").op("alloc").op("retain", blocks=[0]).op("release_many", blocks=[0, 0])
        .op("alloc").op("alloc").op("release_many", blocks=[1, 2, 3]).reclaim()
        .case("free/batch-lists-a-block-twice", "FREE-002", 4, 2,
            stands_for=("POOL-001", "POOL-002", "POOL-003"),
            note="a batched release queues every entry whose final count is zero")
    )
    yield (
        History().op("alloc").op("alloc").op("retain", blocks=[0]).op("release_many", blocks=[0, 1])
        .op("alloc").op("release", blocks=[0]).op("release", blocks=[2]).reclaim()
        .case("free/batch-keeps-the-referenced", "FREE-002", 3, 2, stands_for=("POOL-001", "POOL-002"))
    )
    yield (
        History().op("alloc").op("release", blocks=[0])
        .op("retain", blocks=[0], args={"bad": "a free block"}).op("alloc").op("alloc").op("alloc")
        .case("free/retain-a-free-block", "FREE-003", 3, 2, stands_for=("POOL-001", "POOL-002"),
            note="a free block is brought back to life and handed out as well")
    )
    for size in (2, 1):  # also for who has tokens and no blocks
        yield (
            History().op("alloc").op("alloc").op("release", blocks=[0])
            .op("release", blocks=[0], args={"unknown": True}).op("alloc").op("alloc").reclaim()
            .case("free/release-twice" + "-tokens" * (size == 1), ("FREE-001", "POOL-002"), 4, size,
                stands_for=("POOL-001", "POOL-003"),
                note="free twice, then allocate twice: one block with two owners")
        )
    yield (
        History().add(0, tokens(4)).op("alloc").op("alloc").append(0, 9).op("release", blocks=[0, 1])
        .free(0).reclaim()
        .case("pool/raw-beside-sequences", ("POOL-002", "POOL-001"), 6, 2)
    )
    yield (
        History().add(0, tokens(3)).add(1, tokens(7, 50)).append(0, 9).free(0, 1).add(2, tokens(9, 70))
        .free(2).reclaim()
        .case("pool/reserved-ids", "POOL-005", 6, 2, needs=("reserved",),
            note="drain the pool: no reserved id appears")
    )

"""The timed work of the control plane: one function a cell, each checking what it timed.

A cell sets its subject up and yields one call after another. The caller times the call and sends
its result back; the cell then checks it, which is not timed, and prepares the next one. The first
round has the same input in every run and is counted; the inputs of all others are drawn anew. When
the rounds are over, the cell checks what it has kept of them.

Whoever takes blocks needs their numbers: the timed call asks for the tables of all sequences that it
adds or forks, and for the free blocks of those that it frees. So work that is put off until somebody
looks is timed.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from kvproof.bench.counted import Around
from kvproof.bench.decoding import batch, decode_step
from kvproof.bench.kept import Kept, owned, published, slack
from kvproof.bench.prompts import (
    FILL,
    alike,
    another,
    draw,
    draws,
    enter,
    fixed,
    leave_behind,
    needs_arrays,
    touch,
    twin,
    unknown,
)
from kvproof.bench.scheduling import scheduler_step
from kvproof.bench.subject import Subject, Unsupported, Wrong, blocks_for
from kvproof.bench.work import MAX_ROUNDS, Rounds, Work, expect, read

LIVE = 64
"""Sequences of a round in the cell `pool`."""
EVICTIONS = 1024
"""Blocks evicted in a round of the cell `evict`, in whole sequences."""
LARGEST_HELD = 1024
"""Blocks of one sequence that fills the pool in the cell `pool`."""
BASES = 4
"""Cached prompts that the prompts of the cell `admit_prefix` begin with: the first in the round that is
counted, the others, which differ from each other by a token or two, in all that are timed."""
PARENTS = 2
"""Sequences that are forked in turn."""


def _admit(s: Subject, tokens: int, cached: float | None, form: str) -> Work:
    needs_arrays(s, form)
    size = s.block_size
    blocks, keep = blocks_for(tokens, size), int(tokens * (cached or 0)) // size * size
    usable = (blocks + 2) * (2 if cached is None else MAX_ROUNDS + 4 + BASES)
    manager = s.open(usable, caching=cached is not None)
    found = min(keep, (tokens - 1) // size * size)
    partly = slack(s)
    one = draw(found, unknown())
    places = [secrets.randbelow(found) for _ in range(BASES - 2) if found]
    bases = [fixed(found, 7), one, *(twin(one, at) for at in places)]
    counted: dict[str, float] = {}
    kept = Kept[list[int]]()
    held: list[list[int]] = []
    shared = 0 if "window" in s.capabilities else found // size
    last: list[tuple[int, Any]] = []

    def rounds() -> Rounds:
        touch(manager, usable, size, s.lookahead)
        if found:
            held.extend(leave_behind(manager, ((i, [*base, 1]) for i, base in enumerate(bases))))
            for table, at in zip(held[2:], places, strict=True):
                same = set(table[:shared]).intersection(held[1][:shared])
                expect(f"blocks shared with who differs in token {at}", len(same), min(at // size, shared))
        base, tail = 0, None
        for seq, rng in enumerate(draws(), BASES):
            tail = another(tail, tokens - found, rng, size)
            prompt: Any = bases[base] + tail if found else tail
            if form == "array":
                prompt = np.array(prompt, dtype=np.int32)

            def admit(seq: int = seq, prompt: Any = prompt) -> tuple[int, Any]:
                n = manager.add(seq, prompt)
                manager.commit(seq, tokens)
                return n, read(manager.table(seq))

            around = None if counted else Around(manager)
            n, answer = yield admit
            table = list(answer)
            expect("cached tokens", n, found, partly)
            expect("blocks of the table", len(table), blocks, s.lookahead)
            if shared and table[:shared] != held[base][:shared]:
                raise Wrong("what it found in the cache is not in the blocks that were written with it")
            if around:
                counted.update(around.found([seq]), hits=n // size)
            kept.offer(table.copy)
            manager.free(seq)
            expect("free blocks after the free", manager.free_blocks(), usable)
            last[:] = [(seq, prompt)]
            base = int(rng.choice([b for b in range(1, BASES) if b != base]))

    def recheck() -> None:
        if kept.answer:
            cold = {b for one in held for b in one[: found // size]} - set(kept.answer[: found // size])
            owned(s, [kept.answer, list(cold)], [tokens, len(cold) * size])
        if last and cached is not None:
            seq, prompt = last[0]
            published(s, manager, seq + 1, prompt)

    return Work("ns/block", blocks, rounds(), counted, recheck)


def admit_cold(s: Subject, tokens: int, form: str) -> Work:
    """Add and commit a prompt, and read its table, without prefix caching."""
    return _admit(s, tokens, None, form)


def admit_prefix(s: Subject, tokens: int, cached: float, form: str) -> Work:
    """Add and commit a prompt of which the share `cached` is in the prefix cache, and read its table.

    The last block of a prompt is never cached whole, so no two prompts are equal; many differ from one before
    by one token only, in the cached part too. Behind each round its hit, its cached blocks and the lengths
    are checked; of one all blocks, and at the end that the last prompt was published. What a subject puts off
    until `free` is timed in the cell `evict`.
    """
    return _admit(s, tokens, cached, form)


def free(s: Subject, tokens: int, caching: bool) -> Work:
    """Free 4 sequences of `tokens` tokens each, and read how many blocks are free.

    These are all it gives, and they are checked in every round; so nothing is kept. What is put off until
    somebody takes the blocks is timed in the cells `pool` and `evict`.
    """
    blocks, many = blocks_for(tokens, s.block_size), 4
    usable = (blocks + 2) * many * (MAX_ROUNDS + 4 if caching else 1)
    manager = s.open(usable, caching)
    counted: dict[str, float] = {}

    def rounds() -> Rounds:
        for n, rng in enumerate(draws()):
            seqs = range(n * many, (n + 1) * many)
            enter(manager, ((seq, draw(tokens, rng)) for seq in seqs))

            def leave(seqs: Sequence[int] = seqs) -> Any:
                for seq in seqs:
                    manager.free(seq)
                return manager.free_blocks()

            around = None if counted else Around(manager)
            expect("free blocks after the free", (yield leave), usable)
            if around:
                counted["freed"] = -around.found()["blocks"]

    return Work("ns/block", blocks * many, rounds(), counted, lambda: None)


def fork(s: Subject, tokens: int) -> Work:
    """Fork 16 children of one sequence, of two in turn, and read the table of each child.

    The tables of all children are checked in every round; so nothing is kept.
    """
    s.need("fork")
    size = s.block_size
    blocks, many = blocks_for(tokens, size), 16
    usable = (blocks + s.lookahead) * PARENTS + 2 * many * (1 + s.lookahead)
    manager = s.open(usable)
    counted: dict[str, float] = {}

    def rounds() -> Rounds:
        enter(manager, ((parent, fixed(tokens, 7 + parent)) for parent in range(PARENTS)))
        tables, whole = [list(manager.table(parent)) for parent in range(PARENTS)], manager.free_blocks()
        for n in count():
            parent, children = n % PARENTS, range(PARENTS + n * many, PARENTS + (n + 1) * many)

            def split(parent: int = parent, children: Sequence[int] = children) -> None:
                for child in children:
                    manager.fork(parent, child)
                    read(manager.table(child))

            around = None if counted else Around(manager)
            yield split
            if around:
                counted.update(around.found(children))
            full, tails = tables[parent][: tokens // size], Counter[int]()
            for child in children:
                table = list(manager.table(child))
                expect("blocks of a child", len(table), blocks, s.lookahead)
                if table[: len(full)] != full:
                    raise Wrong("a child does not share the full blocks of its parent")
                tails.update(set(table[len(full) :]) - set(tables[parent]))
            if tails and max(tails.values()) > 1:
                raise Wrong("children share a block that their parent does not have")
            if "copies" in s.capabilities:
                manager.copies()
            for child in children:
                manager.free(child)
            expect("free blocks after the free", manager.free_blocks(), whole)

    return Work("ns/fork", many, rounds(), counted, lambda: None)


class Admissions:
    """Exact counters of prompts that come one by one: between their calls one can look."""

    def __init__(self, manager: Any, size: int) -> None:
        self.manager, self.size = manager, size
        self.found: Counter[str] = Counter()

    def admit(self, seq: int, prompt: Sequence[int], held: set[int] | None = None) -> None:
        """Add and commit a prompt; `held` are blocks with cached contents, to which its own are added.

        An eviction is seen when one of them is handed out for something else.
        """
        around = Around(self.manager)
        n = self.manager.add(seq, prompt)
        self.manager.commit(seq, len(prompt))
        for name, value in (around.found([seq]) | {"hits": n // self.size}).items():
            self.found[name] += int(value)
        if held is not None:
            table = list(self.manager.table(seq))
            self.found["evictions"] += sum(block in held for block in table[n // self.size :])
            held.update(table[: len(prompt) // self.size])


class Churned(NamedTuple):
    """What a round left: the tables of the running sequences, and the blocks that are free."""

    tables: list[list[int]]
    free: int


def pool(s: Subject, blocks: int) -> Work:
    """Admit and free sequences of 16 blocks in mixed order, in a pool of which half is held.

    Admitted is who was added and committed, and whose table was read. Caching is off where it can be. The
    cost must not grow with the pool. The blocks that are free are checked in every round; of one all tables,
    and that no block has two owners. What is counted is a round of its own before the first, because half of
    it can be seen between its calls only.
    """
    size, tokens = s.block_size, 16 * s.block_size
    caching = None if "prefix" in s.capabilities and s.make_uncached is None else False
    manager = s.open(blocks, caching)
    live = min(LIVE, blocks // 128)
    one_each = min(LARGEST_HELD, blocks // 2)
    held = blocks // 2 // one_each
    counted: dict[str, float] = {}
    kept = Kept[Churned]()

    def look(running: list[int], free: int) -> Churned:
        return Churned([list(manager.table(seq)) for seq in running], free)

    def rounds() -> Rounds:
        enter(manager, alike(range(held), one_each * size))
        following, drawn = held + live, draws()
        running = list(range(held, following))
        rng = next(drawn)
        enter(manager, ((seq, draw(tokens, rng)) for seq in running))
        left, one = manager.free_blocks(), Admissions(manager, size)
        ahead = live * s.lookahead  # some may take fewer ahead than others
        for i in rng.permutation(live):
            manager.free(running[i])
            running[i], following = following, following + 1
            one.admit(running[i], draw(tokens, rng))
        counted.update(one.found)
        for rng in drawn:
            order = [running[i] for i in rng.permutation(live)]
            arriving = [(following + i, draw(tokens, rng)) for i in range(live)]

            def churn(order: list[int] = order, arriving: Any = arriving) -> Any:
                for old, (seq, prompt) in zip(order, arriving, strict=True):
                    manager.free(old)
                    manager.add(seq, prompt)
                    manager.commit(seq, tokens)
                    read(manager.table(seq))
                return manager.free_blocks()

            free = yield churn
            running = [seq for seq, _ in arriving]
            following += live
            expect("free blocks", free, left - ahead, 2 * ahead)
            kept.offer(partial(look, running, free))

    def recheck() -> None:
        if kept.answer:
            tables = [list(manager.table(seq)) for seq in range(held)]
            lengths = [one_each * size] * held + [tokens] * live
            total = owned(s, tables + kept.answer.tables, lengths)
            if s.exact:
                expect("free blocks and those in tables", kept.answer.free + total, blocks)

    return Work("ns/request", live, rounds(), counted, recheck)


def evict(s: Subject, blocks: int, prompt_blocks: int) -> Work:
    """Admit and free new prompts where every block of the pool holds cached content.

    A prompt is looked up in vain, takes its blocks by eviction, is published by the commit, has its table
    read, and is freed: four calls a prompt, whose time is divided by its blocks. So a short prompt shows what
    the calls cost and a long one what a block costs. The cost must not grow with the pool. What was
    found and what is free is checked in every round; at the end, that the last prompt was published, and
    that one more was, at a place in the order that nobody can foresee: whatever is evicted first, what
    came last is still there. What is counted is a round of its own before the first, because most of it
    can be seen between its calls only.
    """
    size, tokens = s.block_size, prompt_blocks * s.block_size
    sequences = -(-EVICTIONS // prompt_blocks)
    if prompt_blocks > blocks:
        raise Unsupported(f"a prompt of {prompt_blocks} blocks needs a larger pool")
    manager = s.open(blocks, caching=True)
    one_each = min(FILL, blocks)
    counted: dict[str, float] = {}
    last: list[tuple[int, list[int]]] = []

    def arrive(seq: int, rng: np.random.Generator) -> list[tuple[int, list[int]]]:
        prompts: list[list[int]] = []
        for _ in range(sequences):
            prompts.append(another(prompts[-1] if prompts else None, tokens, rng, size))
        return list(enumerate(prompts, seq + 1))

    def watch(tables: Iterable[Sequence[int]], arriving: list[tuple[int, list[int]]]) -> None:
        one, held = Admissions(manager, size), {block for table in tables for block in table[:one_each]}
        for seq, prompt in arriving:
            one.admit(seq, prompt, held)
            manager.free(seq)
        counted.update(one.found)

    def rounds() -> Rounds:
        seq, drawn = -(-blocks // one_each), draws()
        tables = leave_behind(manager, alike(range(seq), one_each * size))
        whole = manager.free_blocks()
        watch(tables, arrive(seq, next(drawn)))
        del tables
        for rng in drawn:
            seq += sequences
            arriving = arrive(seq, rng)

            def churn(arriving: list[tuple[int, list[int]]] = arriving) -> tuple[list[int], Any]:
                found = []
                for seq, prompt in arriving:
                    found.append(manager.add(seq, prompt))
                    manager.commit(seq, tokens)
                    read(manager.table(seq))
                    manager.free(seq)
                return found, manager.free_blocks()

            found, free = yield churn
            expect("cached tokens", sum(found), 0, sequences * slack(s))
            expect("free blocks", free, whole)
            last[:] = arriving

    def recheck() -> None:
        if not last:
            return
        seq, prompt = last[-1]
        published(s, manager, seq + 1, prompt)
        more = [(seq + 3 + i, draw(tokens, unknown())) for i in range(1 + secrets.randbelow(8))]
        leave_behind(manager, more)
        seq, prompt = more[-1]
        published(s, manager, seq + 1, prompt)

    return Work("ns/block", sequences * prompt_blocks, rounds(), counted, recheck)


CELLS: dict[str, Callable[..., Work]] = {
    f.__name__: f
    for f in (decode_step, admit_cold, admit_prefix, free, fork, batch, pool, evict, scheduler_step)
}

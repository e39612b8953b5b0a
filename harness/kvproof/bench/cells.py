"""The timed work of the control plane: one function a cell, each checking what it timed.

A cell sets its subject up and yields one call after another. The caller times the call and sends
its result back; the cell then checks it, which is not timed, and prepares the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from kvproof.bench.scheduling import scheduler_step
from kvproof.bench.subject import Subject, Unsupported, Wrong, blocks_for
from kvproof.bench.work import MAX_ROUNDS, Rounds, Work, expect

LIVE = 64
"""Sequences of a round in the cell `pool`."""
EVICTIONS = 1024
"""Blocks evicted in a round of the cell `evict`, in whole sequences."""
LONGEST_SET_UP_S = 20
"""A subject too slow to set a cell up in this time is left out of it, with a note."""
FILL = 128
"""Blocks of one sequence that fills the cache in the cell `evict`."""
LARGEST_HELD = 1024
"""Blocks of one sequence that fills the pool in the cell `pool`."""


def _random(n: int, seed: int) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(1000, 150_000, n).tolist()
    return found


def _needs_arrays(s: Subject, form: str) -> None:
    """A probe on a manager of its own: whoever takes lists only is left out of the array cells."""
    if form == "list":
        return
    try:
        manager = s.open(16)
        tokens = np.arange(1, 2 * s.block_size, dtype=np.int32)
        manager.add(0, tokens)
        manager.commit(0, len(tokens))
        if "steps" in s.capabilities:
            manager.append_batch(np.array([0]), np.array([7], dtype=np.int32))
    except Exception as e:
        raise Unsupported(f"takes no arrays ({type(e).__name__})") from e


def _enter(manager: Any, sequences: Iterable[tuple[int, list[int]]], leave: bool = False) -> None:
    """Add and commit these sequences before a cell is timed; with `leave` each is freed at once."""
    start = time.perf_counter()
    for seq, tokens in sequences:
        manager.add(seq, tokens)
        manager.commit(seq, len(tokens))
        if leave:
            manager.free(seq)
        if time.perf_counter() - start > LONGEST_SET_UP_S:
            raise Unsupported(f"left out: the sequences it starts with take more than {LONGEST_SET_UP_S} s")


def _touch(manager: Any, blocks: int, size: int) -> None:
    """Use every block once and publish none, so that no timed round is the first to touch its memory."""
    start, seqs = time.perf_counter(), range(blocks // FILL)
    for seq, tokens in _alike(seqs, FILL * size):
        manager.commit(seq, manager.add(seq, tokens))
        if time.perf_counter() - start > LONGEST_SET_UP_S:
            raise Unsupported(f"left out: using every block once takes more than {LONGEST_SET_UP_S} s")
    for seq in seqs:
        manager.free(seq)


def _alike(seqs: Iterable[int], tokens: int) -> Iterator[tuple[int, list[int]]]:
    """Prompts that differ in their first token only, so that no two share a block of the cache."""
    prompt = _random(tokens, 7)
    for seq in seqs:
        prompt[0] = seq
        yield seq, prompt


def _orders(sequences: int, order: str, n: int) -> list[list[int]]:
    """The batch of each of n steps: the same one, or one that starts a sequence later each time.

    A batch that stays the same lets a subject keep what it worked out for the last one.
    """
    return [[(i + k * (order == "changing")) % sequences for i in range(sequences)] for k in range(n)]


def _decode(
    s: Subject, manager: Any, batches: list[list[int]], form: str
) -> Callable[[list[int]], Callable[[], None]]:
    """Decode steps for these batches, as batched as the subject allows.

    The answer takes the lengths by sequence before the first step and gives the call.
    """
    tokens: Any = [2000] * len(batches[0])
    ids: list[Any] = list(batches)
    if form == "array":
        s.need("steps")
        ids, tokens = [np.array(b) for b in batches], np.array(tokens, dtype=np.int32)
    commit_batch = getattr(manager, "commit_batch", None) if "steps" in s.capabilities else None

    def prepare(now: list[int]) -> Callable[[], None]:
        ends = [[now[seq] + k + 1 for seq in b] for k, b in enumerate(batches)]

        def batched() -> None:
            for batch in ids:
                manager.append_batch(batch, tokens)
                commit_batch(batch)  # type: ignore[misc]

        def half() -> None:
            commit = manager.commit
            for batch, seqs, after in zip(ids, batches, ends, strict=True):
                manager.append_batch(batch, tokens)
                for seq, length in zip(seqs, after, strict=True):
                    commit(seq, length)

        def single() -> None:
            append, commit = manager.append, manager.commit
            for seqs, after in zip(batches, ends, strict=True):
                for seq, length in zip(seqs, after, strict=True):
                    append(seq, [2000])
                    commit(seq, length)

        if "steps" not in s.capabilities:
            return single
        return half if commit_batch is None else batched

    return prepare


def decode_step(s: Subject, sequences: int, caching: bool, order: str, form: str) -> Work:
    """Reserve and commit one token for every running sequence, lengths staggered over a block.

    A round is min(block_size, 64) steps, so that every step takes equally many new blocks.
    """
    _needs_arrays(s, form)
    size, seqs = s.block_size, range(sequences)
    steps = min(size, 64)
    start = [100 + i % size for i in seqs]
    last = max(start) + steps * (MAX_ROUNDS + 1)
    usable = sequences * (blocks_for(last, size) + 1 + s.lookahead)
    manager = s.open(usable, caching)
    prepare = _decode(s, manager, _orders(sequences, order, steps), form)

    def rounds() -> Rounds:
        _touch(manager, usable, size)
        _enter(manager, ((seq, _random(start[seq], seq)) for seq in seqs))
        now = start
        while True:
            free, after = manager.free_blocks(), [x + steps for x in now]
            yield prepare(now)
            for seq in {0, sequences // 2, sequences - 1}:
                expect(
                    "blocks of a table", len(manager.table(seq)), blocks_for(after[seq], size), s.lookahead
                )
            if not (s.lookahead or s.lazy):
                taken = sum(
                    blocks_for(b, size) - blocks_for(a, size) for a, b in zip(now, after, strict=True)
                )
                expect("blocks taken in a round", free - manager.free_blocks(), taken)
            now = after

    return Work("ns/sequence", sequences * steps, rounds())


def _admit(s: Subject, tokens: int, cached: float | None, form: str) -> Work:
    _needs_arrays(s, form)
    size = s.block_size
    blocks, keep = blocks_for(tokens, size), int(tokens * (cached or 0)) // size * size
    usable = (blocks + 2) * (2 if cached is None else MAX_ROUNDS + 4)
    manager = s.open(usable, caching=cached is not None)
    base = _random(tokens, 7)
    found = min(keep, (tokens - 1) // size * size)

    def rounds() -> Rounds:
        _touch(manager, usable, size)
        if keep:
            _enter(manager, [(0, base if keep == tokens else [*base[:keep], 1])], leave=True)
        seq = 1
        while True:
            prompt: Any = base[:keep] + _random(tokens - keep, seq + 1000)
            if form == "array":
                prompt = np.array(prompt, dtype=np.int32)

            def admit(seq: int = seq, prompt: Any = prompt) -> int:
                n: int = manager.add(seq, prompt)
                manager.commit(seq, tokens)
                return n

            n = yield admit
            expect("cached tokens", n, found, size if keep and "partial" in s.capabilities else 0)
            expect("blocks of the table", len(manager.table(seq)), blocks, s.lookahead)
            manager.free(seq)
            expect("free blocks after the free", manager.free_blocks(), usable)
            seq += 1

    return Work("ns/block", blocks, rounds())


def admit_cold(s: Subject, tokens: int, form: str) -> Work:
    """Add and commit a prompt, without prefix caching."""
    return _admit(s, tokens, None, form)


def admit_prefix(s: Subject, tokens: int, cached: float, form: str) -> Work:
    """Add and commit a prompt of which the share `cached` is in the prefix cache."""
    return _admit(s, tokens, cached, form)


def free(s: Subject, tokens: int, caching: bool) -> Work:
    """Free 4 sequences of `tokens` tokens each."""
    blocks, seqs = blocks_for(tokens, s.block_size), range(4)
    usable = (blocks + 2) * len(seqs) * (MAX_ROUNDS + 4 if caching else 1)
    manager = s.open(usable, caching)

    def rounds() -> Rounds:
        seed = 0
        while True:
            _enter(manager, ((seq, _random(tokens, seed + seq)) for seq in seqs))
            seed += len(seqs)

            def leave() -> None:
                for seq in seqs:
                    manager.free(seq)

            yield leave
            expect("free blocks after the free", manager.free_blocks(), usable)

    return Work("ns/block", blocks * len(seqs), rounds())


def fork(s: Subject, tokens: int) -> Work:
    """Fork 16 children of one sequence."""
    s.need("fork")
    size = s.block_size
    blocks, children = blocks_for(tokens, size), range(1, 17)
    usable = blocks + 2 * len(children) * (1 + s.lookahead)
    manager = s.open(usable)

    def rounds() -> Rounds:
        _enter(manager, [(0, _random(tokens, 7))])
        parent, whole = list(manager.table(0)), manager.free_blocks()

        def split() -> None:
            for child in children:
                manager.fork(0, child)

        while True:
            yield split
            for child in children:
                table = list(manager.table(child))
                expect("blocks of a child", len(table), blocks, s.lookahead)
                if table[: tokens // size] != parent[: tokens // size]:
                    raise Wrong("a child does not share the full blocks of its parent")
            if "copies" in s.capabilities:
                manager.copies()
            for child in children:
                manager.free(child)
            expect("free blocks after the free", manager.free_blocks(), whole)

    return Work("ns/fork", len(children), rounds())


def batch(s: Subject, sequences: int, blocks: int, order: str) -> Work:
    """Inputs of a decode step: reserve one token for each sequence, get slots and batch tensor.

    Slots come from `append_batch`, or one by one from `slots`. `blocks` is the width of the table.
    """
    s.need("batch")
    size = s.block_size
    length = blocks * size - MAX_ROUNDS - 2
    if length < 1:
        raise Unsupported(f"{blocks} blocks of {size} tokens are too short for the rounds")
    steps = "steps" in s.capabilities
    if not (steps or "slots" in s.capabilities):
        raise Unsupported("no slots: neither capability steps nor slots")
    caching = None if "prefix" in s.capabilities and s.make_uncached is None else False
    manager = s.open(sequences * (blocks + 1 + s.lookahead), caching)
    tokens = [2000] * sequences

    def prepare(seqs: list[int], now: int) -> tuple[Any, Any]:
        if steps:
            return manager.append_batch(seqs, tokens), manager.batch(seqs)
        for seq in seqs:
            manager.append(seq, [2000])
        return [manager.slots(seq, now - 1, now) for seq in seqs], manager.batch(seqs)

    def rounds() -> Rounds:
        _enter(manager, _alike(range(sequences), length))
        for now, seqs in enumerate(_orders(sequences, order, MAX_ROUNDS + 1), length + 1):
            mapping, (tables, num_blocks, seq_lens) = yield partial(prepare, seqs, now)
            for row in {0, sequences // 2, sequences - 1}:
                table = list(manager.table(seqs[row]))
                got = [int(b) for b in tables[row][: int(num_blocks[row])]]
                if got != table[: len(got)] or len(got) < blocks_for(now, size):
                    raise Wrong(f"row {row} of the batch tensor is not the sequence's table")
                expect("a sequence's tokens in the batch", int(seq_lens[row]), now)
                slot = table[(now - 1) // size] * size + (now - 1) % size
                got_slot = mapping[row] if steps else mapping[row][0]
                expect("the slot of the new token", int(got_slot), slot)
            for seq in seqs:
                manager.commit(seq, now)

    return Work("ns/sequence", sequences, rounds())


def pool(s: Subject, blocks: int) -> Work:
    """Admit and free sequences of 16 blocks in mixed order, in a pool of which half is held.

    Caching is off where it can be. The cost must not grow with the pool.
    """
    size, tokens = s.block_size, 16 * s.block_size
    caching = None if "prefix" in s.capabilities and s.make_uncached is None else False
    manager = s.open(blocks, caching)
    live = min(LIVE, blocks // 128)
    one_each = min(LARGEST_HELD, blocks // 2)

    def rounds() -> Rounds:
        held = blocks // 2 // one_each
        _enter(manager, _alike(range(held), one_each * size))
        rng = np.random.default_rng(1)
        running = list(range(held, held + live))
        _enter(manager, ((seq, _random(tokens, seq)) for seq in running))
        left, following = manager.free_blocks(), running[-1] + 1
        while True:
            order = [running[i] for i in rng.permutation(live)]
            arriving = [(following + i, _random(tokens, following + i)) for i in range(live)]

            def churn(order: list[int] = order, arriving: Any = arriving) -> None:
                for old, (seq, prompt) in zip(order, arriving, strict=True):
                    manager.free(old)
                    manager.add(seq, prompt)
                    manager.commit(seq, tokens)

            yield churn
            running = [seq for seq, _ in arriving]
            following += live
            expect("free blocks", manager.free_blocks(), left)

    return Work("ns/request", live, rounds())


def evict(s: Subject, blocks: int, prompt_blocks: int) -> Work:
    """Admit and free new prompts where every block of the pool holds cached content.

    A prompt is looked up in vain, takes its blocks by eviction, is published by the commit, and is
    freed: three calls a prompt, whose time is divided by its blocks. So a short prompt shows what
    the calls cost and a long one what a block costs. The cost must not grow with the pool.
    """
    size, tokens = s.block_size, prompt_blocks * s.block_size
    sequences = -(-EVICTIONS // prompt_blocks)
    if prompt_blocks > blocks:
        raise Unsupported(f"a prompt of {prompt_blocks} blocks needs a larger pool")
    manager = s.open(blocks, caching=True)
    one_each = min(FILL, blocks)

    def rounds() -> Rounds:
        seq = -(-blocks // one_each)
        _enter(manager, _alike(range(seq), one_each * size), leave=True)
        whole = manager.free_blocks()
        while True:
            arriving = [(seq + i, _random(tokens, seq + i)) for i in range(1, sequences + 1)]

            def churn(arriving: list[tuple[int, list[int]]] = arriving) -> list[int]:
                found = []
                for seq, prompt in arriving:
                    found.append(manager.add(seq, prompt))
                    manager.commit(seq, tokens)
                    manager.free(seq)
                return found

            expect("cached tokens", sum((yield churn)), 0)
            seq += sequences
            expect("free blocks", manager.free_blocks(), whole)

    return Work("ns/block", sequences * prompt_blocks, rounds())


CELLS: dict[str, Callable[..., Work]] = {
    f.__name__: f
    for f in (decode_step, admit_cold, admit_prefix, free, fork, batch, pool, evict, scheduler_step)
}

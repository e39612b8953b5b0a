"""The timed work of decode steps: one token for every running sequence, and the batch tensor of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kvproof.bench.counted import Around
from kvproof.bench.kept import Kept, owned, some
from kvproof.bench.prompts import Batches, alike, draws, enter, fixed, needs_arrays, touch
from kvproof.bench.subject import Subject, Unsupported, Wrong, blocks_for
from kvproof.bench.work import MAX_ROUNDS, Rounds, Work, expect, read

Answer: TypeAlias = tuple[Any, int]
"""Of a round of decode steps: the slots of its last step, None without `steps`, and the free blocks."""


def _orders(sequences: int, order: str, n: int) -> list[list[int]]:
    """The batch of each of n steps: the same one, or one that starts a sequence later each time.

    A batch that stays the same lets a subject keep what it worked out for the last one.
    """
    return [[(i + k * (order == "changing")) % sequences for i in range(sequences)] for k in range(n)]


def _decode(
    s: Subject, manager: Any, batches: list[list[int]], form: str
) -> Callable[[list[int], np.random.Generator], Callable[[], Answer]]:
    """Decode steps for these batches, as batched as the subject allows.

    Each step of `append_batch` gives its slots. Who has none is asked for all tables when the last step is
    done, as late as work could be put off: after each it would cost more than the step itself.

    The answer takes the lengths by sequence before the first step, and what the tokens are drawn by, and
    gives the call.
    """
    ids: list[Any] = list(batches)
    if form == "array":
        s.need("steps")
        ids = [np.array(b) for b in batches]
    tokens = Batches(len(batches[0]))
    commit_batch = getattr(manager, "commit_batch", None) if "steps" in s.capabilities else None

    def prepare(now: list[int], rng: np.random.Generator) -> Callable[[], Answer]:
        ends = [[now[seq] + k + 1 for seq in b] for k, b in enumerate(batches)]
        news = tokens.take(len(batches), rng, form if "steps" in s.capabilities else "single")

        def batched() -> Answer:
            slots = None
            for batch, new in zip(ids, news, strict=True):
                slots = read(manager.append_batch(batch, new))
                commit_batch(batch)  # type: ignore[misc]
            return slots, manager.free_blocks()

        def half() -> Answer:
            slots, commit = None, manager.commit
            for batch, seqs, new, after in zip(ids, batches, news, ends, strict=True):
                slots = read(manager.append_batch(batch, new))
                for seq, length in zip(seqs, after, strict=True):
                    commit(seq, length)
            return slots, manager.free_blocks()

        def single() -> Answer:
            append, commit = manager.append, manager.commit
            for seqs, new, after in zip(batches, news, ends, strict=True):
                for seq, token, length in zip(seqs, new, after, strict=True):
                    append(seq, token)
                    commit(seq, length)
            for seq in batches[-1]:
                read(manager.table(seq))
            return None, manager.free_blocks()

        if "steps" not in s.capabilities:
            return single
        return half if commit_batch is None else batched

    return prepare


def slot(table: Sequence[int], tokens: int, size: int) -> int:
    """Of the last of so many tokens."""
    return table[(tokens - 1) // size] * size + (tokens - 1) % size


class Tables(NamedTuple):
    """A state of running sequences: their tables and lengths, and the blocks that are free."""

    tables: list[list[int]]
    tokens: list[int]
    free: int


def decode_step(s: Subject, sequences: int, caching: bool, order: str, form: str) -> Work:
    """Reserve and commit one token for every running sequence, lengths staggered over a block.

    A round is min(block_size, 64) steps, so that every step takes equally many new blocks. It gives the slots
    of each step, without the capability `steps` the tables behind the last, and the free blocks. Behind each
    round these, some tables and slots are checked; of one round all tables: every block has one owner, and
    what is in none is free.
    """
    needs_arrays(s, form)
    size, seqs = s.block_size, range(sequences)
    steps = min(size, 64)
    start = [100 + i % size for i in seqs]
    last = max(start) + steps * (MAX_ROUNDS + 1)
    usable = sequences * (blocks_for(last, size) + 1 + s.lookahead)
    manager = s.open(usable, caching)
    orders = _orders(sequences, order, steps)
    prepare = _decode(s, manager, orders, form)
    counted: dict[str, float] = {}
    kept = Kept[Tables]()

    def rounds() -> Rounds:
        touch(manager, usable, size, s.lookahead)
        enter(manager, ((seq, fixed(start[seq], seq)) for seq in seqs))
        now, free = start, manager.free_blocks()
        for rng in draws():
            after, around = [x + steps for x in now], None if counted else Around(manager, seqs)
            slots, left = yield prepare(now, rng)
            for row in some(sequences):
                seq = orders[-1][row]
                table = list(manager.table(seq))
                expect("blocks of a table", len(table), blocks_for(after[seq], size), s.lookahead)
                if slots is not None:
                    expect("the slot of the last token", int(slots[row]), slot(table, after[seq], size))
            if s.exact:
                taken = sum(
                    blocks_for(b, size) - blocks_for(a, size) for a, b in zip(now, after, strict=True)
                )
                expect("blocks taken in a round", free - left, taken)
            if around:
                counted.update(around.found())
            now, free = after, left
            kept.offer(partial(_tables, manager, after, left))

    def recheck() -> None:
        if kept.answer:
            total = owned(s, kept.answer.tables, kept.answer.tokens)
            if s.exact:
                expect("free blocks and those in tables", kept.answer.free + total, usable)

    return Work("ns/sequence", sequences * steps, rounds(), counted, recheck)


def _tables(manager: Any, tokens: list[int], free: int) -> Tables:
    return Tables([list(manager.table(seq)) for seq in range(len(tokens))], tokens, free)


class Inputs(NamedTuple):
    """A copy of what a step was given: the batch tensor, its two lengths a row, and the slots."""

    tables: Any
    num_blocks: list[int]
    seq_lens: list[int]
    slots: list[int]
    tokens: int
    """Length that every sequence had then."""


def batch(s: Subject, sequences: int, blocks: int, order: str) -> Work:
    """Inputs of a decode step: reserve one token for each sequence, get slots and batch tensor.

    Slots come from `append_batch`, or one by one from `slots`. `blocks` is the width of the table. Some rows
    are checked in each round, and all of them in one: lengths, slots, and one owner for each block. A subject
    whose tables lag until the commit (`lazy`) is timed with that; of all others it follows the round.
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
    tokens = Batches(sequences)
    counted: dict[str, float] = {}
    kept = Kept[Inputs]()

    def prepare(seqs: list[int], new: list[Any], now: int) -> tuple[Any, Any]:
        if steps:
            slots = read(manager.append_batch(seqs, new))
        else:
            for seq, token in zip(seqs, new, strict=True):
                manager.append(seq, token)
        if s.lazy:
            commit(seqs, now)
        if not steps:
            slots = [read(manager.slots(seq, now - 1, now)) for seq in seqs]
        return slots, tuple(map(read, manager.batch(seqs)))

    def commit(seqs: list[int], now: int) -> None:
        for seq in seqs:
            manager.commit(seq, now)

    def copy(mapping: Any, answer: Any, now: int) -> Inputs:
        tables, num_blocks, seq_lens = answer
        slots = [int(m if steps else m[0]) for m in mapping]
        return Inputs(np.array(tables), list(map(int, num_blocks)), list(map(int, seq_lens)), slots, now)

    def rounds() -> Rounds:
        enter(manager, alike(range(sequences), length))
        turns = zip(_orders(sequences, order, MAX_ROUNDS + 1), draws(), strict=False)
        for now, (seqs, rng) in enumerate(turns, length + 1):
            around = None if counted else Around(manager)
            (new,) = tokens.take(1, rng, "list" if steps else "single")
            mapping, answer = yield partial(prepare, seqs, new, now)
            tables, num_blocks, seq_lens = answer
            for row in some(sequences):
                table = list(manager.table(seqs[row]))
                got = [int(b) for b in tables[row][: int(num_blocks[row])]]
                if got != table[: len(got)] or len(got) < blocks_for(now, size):
                    raise Wrong(f"row {row} of the batch tensor is not the sequence's table")
                expect("a sequence's tokens in the batch", int(seq_lens[row]), now)
                got_slot = mapping[row] if steps else mapping[row][0]
                expect("the slot of the new token", int(got_slot), slot(table, now, size))
            if around:
                counted.update(around.found(), entries=sum(map(int, num_blocks)))
            kept.offer(partial(copy, mapping, answer, now))
            if not s.lazy:
                commit(seqs, now)

    def recheck() -> None:
        if kept.answer is None:
            return
        tables, num_blocks, seq_lens, slots, now = kept.answer
        rows = [row[:n] for row, n in zip(tables.tolist(), num_blocks, strict=True)]
        owned(s, rows, [now] * sequences)
        for row, length, got in zip(rows, seq_lens, slots, strict=True):
            expect("a sequence's tokens in the batch", length, now)
            expect("the slot of the new token", got, slot(row, now, size))

    return Work("ns/sequence", sequences, rounds(), counted, recheck)

"""A step's decision as bytes: what changes in the tables, and the tokens (chapter 3.2.4).

Everything is a varint, 7 bits a byte; signed numbers are folded (0, -1, 1, -2, ...). Lists of sequences and
blocks hold differences to the entry before. When the same sequences decode again, one token each, they are
not listed: the tokens alone are sent, and the part about tables is empty unless a block was added.

    part one   tokens: 1, tokens                          the batch of the step before, one token each
                       0, rows of (sequence, start, count, tokens)
    part two   removed sequences; rows of (place in the batch, entries dropped, entries added, blocks)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kvproof.contract import BadInput

MANY = 48
"""So many numbers are read as an array, fewer one by one: about here both take as long."""
WIDEST = 8
"""Bytes of a number that is read in an array: 56 bits."""


class Change(NamedTuple):
    """What a step does to one sequence."""

    seq: int
    start: int
    """First position that the step computes; below it the blocks hold the KV already."""
    tokens: Sequence[int]
    """From `start` to the end. Empty with no blocks: the sequence is preempted."""
    kept: int
    """Entries of its table that stay."""
    blocks: Sequence[int]
    """Entries behind them."""


class Decision(NamedTuple):
    """One step."""

    changes: tuple[Change, ...]
    removed: tuple[int, ...] = ()


class Before(Protocol):
    """What both sides know before the step."""

    batch: tuple[int, ...]

    def length(self, seq: int) -> int:
        """Tokens of a sequence, 0 if unknown."""
        ...

    def entries(self, seq: int) -> int:
        """Entries of its table, 0 if unknown."""
        ...


def encode(decision: Decision, before: Before) -> tuple[bytes, bytes]:
    """(tokens, tables)."""
    changes = decision.changes
    same = bool(changes) and tuple(c.seq for c in changes) == before.batch
    same = same and all(len(c.tokens) == 1 and c.start == before.length(c.seq) for c in changes)
    out: list[int] = [1] if same else [0, len(changes)]
    last = 0
    for change in changes:
        if not same:
            out += (_fold(change.seq - last), change.start, len(change.tokens))
            last = change.seq
        out += change.tokens
    rows: list[int] = [len(decision.removed), *decision.removed]
    moved = [(i, c) for i, c in enumerate(changes) if c.blocks or c.kept < before.entries(c.seq)]
    rows.append(len(moved))
    place = block = 0
    for i, change in moved:
        rows += (i - place, before.entries(change.seq) - change.kept, len(change.blocks))
        place = i
        for b in change.blocks:
            rows.append(_fold(b - block))
            block = b
    return _varints(out), _varints(rows)


def decode(tokens: bytes, tables: bytes, before: Before) -> Decision:
    """The decision.

    Raises:
        BadInput: it is cut short, longer, or does not fit the state that it is decoded in.
    """
    read, rows = _Reader(tokens), _Reader(tables)
    heads: list[tuple[int, int, list[int]]] = []
    if read.number():
        tokens_of = zip(before.batch, read.numbers(len(before.batch)), strict=True)
        heads = [(seq, before.length(seq), [token]) for seq, token in tokens_of]
    else:
        seq = 0
        for _ in range(read.count()):
            seq += _unfold(read.number())
            start = read.number()
            heads.append((seq, start, read.numbers(read.count())))
    removed = tuple(rows.numbers(rows.count()))
    kept = [before.entries(seq) for seq, _, _ in heads]
    blocks: list[list[int]] = [[] for _ in heads]
    place = block = 0
    for _ in range(rows.count()):
        place += rows.number()
        dropped, added = rows.number(), rows.count()
        if place >= len(heads) or dropped > kept[place]:
            raise BadInput(f"row {place} drops {dropped} entries: the step does not fit this state")
        kept[place] -= dropped
        for _ in range(added):
            block += _unfold(rows.number())
            blocks[place].append(block)
    read.end()
    rows.end()
    return Decision(tuple(Change(*heads[i], kept[i], blocks[i]) for i in range(len(heads))), removed)


def _fold(value: int) -> int:
    return -2 * value - 1 if value < 0 else 2 * value


def _unfold(value: int) -> int:
    return -(value >> 1) - 1 if value & 1 else value >> 1


def _varints(values: Iterable[int]) -> bytes:
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return bytes(out)


class _Reader:
    """Reads varints from the front of a message."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        value = shift = 0
        while self.at < len(self.data):
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise BadInput("a decision ends inside a number")

    def count(self) -> int:
        """Of entries that follow: each takes a byte at least."""
        value = self.number()
        if value > len(self.data) - self.at:
            raise BadInput(f"a decision of {len(self.data)} bytes cannot hold {value} entries")
        return value

    def numbers(self, count: int) -> list[int]:
        if count >= MANY:
            data = np.frombuffer(self.data, np.uint8)[self.at : self.at + count * WIDEST]
            ends = np.flatnonzero(data < 128)[:count] + 1
            sizes = np.diff(ends, prepend=0)
            if len(ends) == count and sizes.max() <= WIDEST:
                starts = ends - sizes
                data = data[: ends[-1]]
                places = np.arange(len(data)) - np.repeat(starts, sizes)
                self.at += len(data)
                parts = (data & 127).astype(np.int64) << 7 * places
                values: list[int] = np.add.reduceat(parts, starts).tolist()
                return values
        return [self.number() for _ in range(count)]

    def end(self) -> None:
        if self.at != len(self.data):
            raise BadInput(f"{len(self.data) - self.at} bytes behind the decision")

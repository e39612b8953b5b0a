"""The block tables of all sequences in one int32 matrix (chapter 3.2.2).

A row is a sequence, an entry the physical block of its i-th logical block, -1 behind the end. The
matrix is itself the batch tensor that a kernel reads: growing a table writes one element, and the
batch of the first n rows is a view. Rows of ended sequences are used again, lowest first, so a busy
batch stays at the top.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from kvproof.contract import BadInput, Refused, UnknownSequence

from .arrays import Bool, Index, Int32, Int64
from .inputs import int_array, new_id

PAD = -1

Rows: TypeAlias = slice | Index
"""Rows of a batch: a slice when they are 0..n-1 in order, so that everything stays a view."""

Moves: TypeAlias = list[tuple[int, int]]
"""(row, logical block) of blocks that must be copied before a write."""


class Tables:
    """Rows and their counters, each indexed by row.

    Attributes:
        matrix: int32 [rows, width], blocks, padded with -1.
        num_blocks: int32, entries in use.
        seq_lens: int32, tokens.
        computed: int32, tokens whose KV is written.
        last_slot: int64, block * block_size + offset of the last token; the next token's slot is
            the one after it, unless a new block begins.
        shared: bool, a block at or past `computed` may have other owners or be published: look
            before the next write. Never false when it must be true.
        away: rows whose sequence is swapped out; they keep their counters and have no blocks.
    """

    _counters = ("num_blocks", "seq_lens", "computed", "last_slot", "shared")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.row_of: dict[int, int] = {}
        self.matrix: Int32 = np.empty((0, 0), np.int32)
        self.num_blocks: Int32 = np.zeros(0, np.int32)
        self.seq_lens: Int32 = np.zeros(0, np.int32)
        self.computed: Int32 = np.zeros(0, np.int32)
        self.last_slot: Int64 = np.zeros(0, np.int64)
        self.shared: Bool = np.zeros(0, np.bool_)
        self.away: set[int] = set()
        self._free_rows: list[int] = []
        self._last_seqs: list[int] = []
        self._last_rows: Rows = slice(0, 0)

    # ------------------------------------------------------------ sequences and rows

    def new_id(self, seq: Any) -> int:
        """The id of a sequence that does not exist yet, else BadInput."""
        found = new_id(seq)
        if found in self.row_of:
            raise BadInput(f"sequence {seq} exists already")
        return found

    def row(self, seq: Any) -> int:
        """Row of a sequence in any state."""
        row = self.row_of.get(seq if type(seq) is int else new_id(seq))
        if row is None:
            raise UnknownSequence(f"no sequence {new_id(seq)}")
        return row

    def live_row(self, seq: Any) -> int:
        """Row of a sequence that is not swapped out."""
        row = self.row(seq)
        if row in self.away:
            raise Refused(f"sequence {seq} is swapped out")
        return row

    def rows(self, seqs: Sequence[int], *, repeats: bool = False) -> Rows:
        """Rows of a batch of sequences, each listed once and not swapped out unless `repeats`.

        A decode loop passes the same ids in every step, so the last batch is remembered.
        """
        if type(seqs) is not list:
            seqs = list(seqs)
        elif seqs == self._last_seqs and seqs:
            return self._last_rows
        places = None if self.away else self._places(seqs)
        if places is None:
            places = [self.row(seq) if repeats else self.live_row(seq) for seq in seqs]
        rows = int_array(places)
        found: Rows = slice(0, len(rows)) if np.array_equal(rows, np.arange(len(rows))) else rows
        if not np.count_nonzero(np.bincount(rows) > 1):
            if not self.away:
                self.remember(list(seqs), found)
        elif not repeats:
            raise BadInput("a sequence is listed twice")
        return found

    def remember(self, seqs: list[int], rows: Rows) -> None:
        """What `rows` answers for these ids (a list that nobody changes), until a sequence leaves."""
        self._last_seqs, self._last_rows = seqs, rows

    def _places(self, seqs: Sequence[int]) -> list[int] | None:
        """Rows of these sequences in any state, None if one of them is not the id of a sequence."""
        try:
            int_array(seqs)
            return list(map(self.row_of.__getitem__, seqs))
        except (KeyError, struct.error, TypeError):
            return None

    # ------------------------------------------------------------ changes

    def blocks_of(self, length: int) -> int:
        """Blocks that `length` tokens take."""
        return -(-length // self.block_size)

    def add(self, seq: int) -> int:
        """Give `seq` the lowest free row, empty."""
        row = heapq.heappop(self._free_rows) if self._free_rows else len(self.row_of)
        if row >= len(self.matrix):
            self._reshape(max(8, 2 * row), self.matrix.shape[1])
        self.row_of[seq] = row
        return row

    def remove(self, seq: int) -> None:
        """Empty the row of `seq` and give it back."""
        row = self.row_of.pop(seq)
        self.shrink(row, 0)
        self.seq_lens[row] = self.computed[row] = 0
        self.shared[row] = False
        self.away.discard(row)
        self._last_seqs = []
        heapq.heappush(self._free_rows, row)

    def blocks(self, row: int) -> Int32:
        """The table of a row, a view."""
        return self.matrix[row, : self.num_blocks[row]]

    def grow(self, row: int, blocks: Int32) -> None:
        """Put `blocks` behind the last one."""
        start = self.num_blocks.item(row)
        stop = start + len(blocks)
        if stop > self.matrix.shape[1]:
            self._reshape(len(self.matrix), max(2 * self.matrix.shape[1], (stop + 7) // 8 * 8))
        self.matrix[row, start:stop] = blocks
        self.num_blocks[row] = stop

    def grow_each(self, rows: Index, blocks: Int32) -> None:
        """Put blocks[i] behind the last block of rows[i]."""
        start = self.num_blocks[rows]
        if int(start.max()) >= self.matrix.shape[1]:
            self._reshape(len(self.matrix), max(8, 2 * self.matrix.shape[1]))
        self.matrix[rows, start] = blocks
        self.num_blocks[rows] = start + 1

    def shrink(self, row: int, count: int) -> None:
        """Keep the first `count` blocks of a row; what was behind them is padding again."""
        self.matrix[row, count : self.num_blocks[row]] = PAD
        self.num_blocks[row] = count

    def set_length(self, row: int, length: int) -> None:
        """Set the token count of a row whose blocks are in place."""
        self.seq_lens[row] = length
        last = length - 1
        block = self.matrix.item(row, last // self.block_size)
        self.last_slot[row] = block * self.block_size + last % self.block_size

    def leave(self, row: int) -> None:
        """The sequence is swapped out: no blocks, counters as they are."""
        self.shrink(row, 0)
        self.shared[row] = False
        self.away.add(row)
        self._last_seqs = []

    def come_back(self, row: int, blocks: Int32) -> None:
        """The sequence is back, in these blocks of its own."""
        self.away.discard(row)
        self.grow(row, blocks)
        self.set_length(row, self.seq_lens.item(row))

    # ------------------------------------------------------------ copy-on-write

    def open(self, row: int) -> range:
        """Logical blocks at or past the computed length: they will be written."""
        return range(self.computed.item(row) // self.block_size, self.num_blocks.item(row))

    def doubt(self, row: int) -> None:
        """Note that open blocks of this row may have to be copied before a write."""
        self.shared[row] |= len(self.open(row)) > 0

    def doubt_all(self) -> None:
        """The same for every row."""
        for row in self.row_of.values():
            self.doubt(row)

    def moves(self, rows: Sequence[int], owners: Int32) -> Moves:
        """Open blocks with other owners, once each owner but the last has moved away in this order."""
        found: Moves = []
        left: dict[int, int] = {}
        for row in rows:
            for index in self.open(row):
                block = self.matrix.item(row, index)
                count = left.get(block, owners.item(block))
                if count > 1:
                    found.append((row, index))
                    left[block] = count - 1
        return found

    # ------------------------------------------------------------ forms

    def slots(self, row: int, low: int, high: int) -> Int64:
        """Slots of positions low..high-1, which must be below the length."""
        positions = np.arange(low, high)
        blocks: Int64 = self.matrix[row].take(positions // self.block_size).astype(np.int64)
        return blocks * self.block_size + positions % self.block_size

    def batch(self, rows: Rows) -> tuple[Int32, Int32, Int32]:
        """(tables [n, widest], num_blocks [n], seq_lens [n]); views where rows is a slice."""
        counts = self.num_blocks[rows]
        widest = int(counts.max(initial=0))
        return self.matrix[rows, :widest], counts, self.seq_lens[rows]

    def ragged(self, rows: Rows) -> tuple[Int32, Int32, Int32]:
        """(indptr [n + 1], indices, tokens in the last block [n]), all int32."""
        matrix, counts, lengths = self.batch(rows)
        indptr = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=indptr[1:])
        inside = np.arange(matrix.shape[1]) < counts[:, None]
        return indptr, matrix[inside], (lengths - 1) % self.block_size + 1

    def nbytes(self) -> int:
        """Bytes of the tables with their padding, token counts and block counts included."""
        return self.matrix.nbytes + self.num_blocks.nbytes + self.seq_lens.nbytes

    def _reshape(self, rows: int, width: int) -> None:
        old = self.matrix
        self.matrix = np.full((rows, width), PAD, np.int32)
        self.matrix[: old.shape[0], : old.shape[1]] = old
        for name in self._counters:
            counter = getattr(self, name)
            if len(counter) < rows:
                setattr(self, name, np.concatenate((counter, np.zeros(rows - len(counter), counter.dtype))))


def pick(rows: Rows, index: Int64) -> Index:
    """The rows at these places of a batch."""
    return index if isinstance(rows, slice) else rows[index]

"""The decode batch: requests that compute one token in every step.

Everything is kept by table row, so joining and leaving touch one entry, and a step over n requests is a
few vector operations and one pass that makes the rows of the plan. The columns in batch order, which is
row order, are made again only after a change.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .arrays import Bool, Index, Int32, Int64
from .manager import Manager
from .requests import Request, State

Row: TypeAlias = tuple[int, int, int, Int32]
"""(rid, lo, hi, table): a row of a plan."""

LOG = 64
"""Steps whose tokens are kept aside before they go to the requests: appending to n lists in every step
costs more than the step."""


class DecodeBatch:
    """The batch. `generated` of its requests lags behind until `settle` or until they leave.

    Attributes:
        requests, seqs: the requests and their ids; new lists after every change.
        tokens: int32, the token that each computes next.
    """

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._matrix = manager.tables.matrix
        # by table row
        self._inside: Bool = np.zeros(0, np.bool_)
        self._ids: Int64 = np.zeros(0, np.int64)
        self._ends: Int32 = np.zeros(0, np.int32)  # positions to compute in all
        self._next: Int32 = np.zeros(0, np.int32)
        self._since: Int32 = np.zeros(0, np.int32)  # first entry of the log that is its own
        self._requests: NDArray[np.object_] = np.zeros(0, np.object_)
        self._views: NDArray[np.object_] = np.zeros(0, np.object_)  # of its table, until that grows
        self._log: Int32 = np.zeros((LOG, 0), np.int32)
        self._logged = 0
        # in batch order
        self._stale = True
        self._count = 0
        self._refresh()

    def __len__(self) -> int:
        return self._count

    def join(self, request: Request) -> None:
        """It has one token left to compute, which the manager does not know yet."""
        request.state = State.DECODE
        tables = self._manager.tables
        row = tables.row(request.rid)
        if row >= len(self._inside):
            self._grow(len(tables.matrix))
        self._inside[row], self._ids[row] = True, request.rid
        self._ends[row], self._next[row] = request.positions, request.generated[-1]
        self._since[row] = self._logged
        self._requests[row], self._views[row] = request, tables.blocks(row)
        self._stale = True
        self._count += 1

    def leave(self, request: Request) -> None:
        """It goes on elsewhere, with its next token not computed yet."""
        row = self._manager.tables.row(request.rid)
        request.generated += self._log[self._since[row] : self._logged, row].tolist()
        request.computed = request.length - 1
        request.state = State.CHUNKS
        self._inside[row], self._requests[row], self._views[row] = False, None, None
        self._stale = True
        self._count -= 1

    def settle(self) -> None:
        """Bring `generated` of all requests up to date."""
        if not self._logged:
            return
        self._refresh()
        columns, since = self._log[: self._logged, self._rows].T.tolist(), self._since[self._rows].tolist()
        for request, column, start in zip(self._members, columns, since, strict=True):
            request.generated += column[start:]
        self._since[:] = self._logged = 0

    @property
    def requests(self) -> list[Request]:
        self._refresh()
        return self._members

    @property
    def seqs(self) -> list[int]:
        self._refresh()
        return self._seqs

    @property
    def tokens(self) -> Int32:
        self._refresh()
        tokens: Int32 = self._next[self._rows]
        return tokens

    def rows(self) -> list[Row]:
        """The step: the manager has the tokens by now."""
        self._refresh()
        tables = self._manager.tables
        last = tables.seq_lens[self._rows] - 1
        grown = np.flatnonzero(last % tables.block_size == 0)
        if tables.matrix is not self._matrix:
            self._matrix, grown = tables.matrix, np.arange(len(last))
        counts = tables.num_blocks[self._rows].take(grown)
        rows = self._index.take(grown)
        for place, row, count in zip(grown.tolist(), rows.tolist(), counts.tolist(), strict=True):
            self._tables[place] = self._views[row] = tables.matrix[row, :count]
        return list(zip(self._seqs, last.tolist(), (last + 1).tolist(), self._tables, strict=True))

    def feed(self, tokens: Int32) -> list[Request]:
        """One sampled token each; returns those that have all their tokens now, still in the batch."""
        self._refresh()
        rows = self._rows
        self._next[rows] = self._log[self._logged, rows] = tokens
        self._logged += 1
        full = np.flatnonzero(self._manager.tables.seq_lens[rows] == self._ends[rows])
        done = [self._members[place] for place in full.tolist()]
        if self._logged == LOG:
            self.settle()
        return done

    def _refresh(self) -> None:
        """Make the columns in batch order again, if the batch has changed."""
        if self._stale:
            self._stale = False
            self._index: Index = np.flatnonzero(self._inside)
            dense = self._count and self._index[-1] == self._count - 1
            self._rows = slice(0, self._count) if dense else self._index
            self._seqs: list[int] = self._ids[self._rows].tolist()
            self._members: list[Request] = self._requests[self._rows].tolist()
            self._tables: list[Int32] = self._views[self._rows].tolist()
        self._manager.tables.remember(self._seqs, self._rows)

    def _grow(self, rows: int) -> None:
        for name in ("_inside", "_ids", "_ends", "_next", "_since", "_requests", "_views"):
            old: NDArray[Any] = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros(rows - len(old), old.dtype))))
        self._log = np.concatenate((self._log, np.zeros((LOG, rows - self._log.shape[1]), np.int32)), axis=1)

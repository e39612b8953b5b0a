"""What a call will take, found out before it changes anything: blocks, hits, copies, or its error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvproof.contract import BadInput, OutOfBlocks, Refused

from .arrays import Int32
from .inputs import parse_keys, token_array, token_count
from .pool import Pool
from .prefix import Hit, PrefixCache
from .tables import Moves, Tables


class Plans:
    """Reads the pool, the tables and the prefix cache (None: caching is off); writes nothing.

    Every method raises what the call would: BadInput, UnknownSequence, Refused or OutOfBlocks.
    """

    def __init__(self, pool: Pool, tables: Tables, prefix: PrefixCache | None) -> None:
        self._pool, self._tables, self._prefix = pool, tables, prefix

    def add(
        self, seq: Any, tokens: Any, keys: Mapping[str, Any] | None
    ) -> tuple[int, Int32 | None, int, Hit]:
        """(id, tokens, length, hit) of an add that will succeed."""
        seq = self._tables.new_id(seq)
        values, length, hit = self.find(tokens, keys)
        total, taken = self._tables.blocks_of(length), self.taken(length, hit)
        if taken > self._pool.available or total > self._pool.capacity:
            self.short(taken, total)
        return seq, values, length, hit

    def find(self, tokens: Any, keys: Mapping[str, Any] | None) -> tuple[Int32 | None, int, Hit]:
        """(tokens, length, hit) of a new sequence."""
        if self._prefix:
            values = token_array(tokens)
            return values, len(values), self._prefix.match(values, *parse_keys(keys))
        if keys:
            raise BadInput("keys need prefix caching, which is off")
        return None, token_count(tokens), Hit(np.empty(0, np.int32), 0, 0)

    def taken(self, length: int, hit: Hit) -> int:
        """Blocks that a new sequence takes: new ones, and matched ones that nobody holds."""
        total = self._tables.blocks_of(length)
        if not len(hit.blocks):
            return total
        return total - len(hit.blocks) + int(np.count_nonzero(self._pool.state.take(hit.blocks) < 0))

    def append(self, seq: Any, tokens: Any) -> tuple[int, Int32 | None, int, Moves]:
        """(row, tokens, how many, blocks to copy) of an append that will succeed."""
        row = self._tables.live_row(seq)
        values = token_array(tokens) if self._prefix else None
        count = token_count(tokens) if values is None else len(values)
        return row, values, count, self.growth(row, count)

    def growth(self, row: int, count: int) -> Moves:
        """Blocks to copy before `count` tokens are appended to a row."""
        total = self._tables.blocks_of(self._tables.seq_lens.item(row) + count)
        moves = self._tables.moves([row], self._pool.state) if self._tables.shared[row] else []
        needed = total - self._tables.num_blocks.item(row) + len(moves)
        if needed > self._pool.available or total > self._pool.capacity:
            self.short(needed, total)
        return moves

    def short(self, needed: int, total: int) -> None:
        """Raise what a call that lacks blocks answers; its longest sequence would have `total`."""
        if total > self._pool.capacity:
            raise Refused(f"{total} blocks for one sequence, the pool has {self._pool.capacity}")
        raise OutOfBlocks(f"{needed} blocks needed, {self._pool.available} available")

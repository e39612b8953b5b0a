"""Blocks taken without a sequence: the pool as other parts of an engine use it (chapter 3.2.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from kvproof.contract import BadInput

from .arrays import Int32
from .pool import Pool


class RawBlocks:
    """References that no table explains, counted by block, so that none can be dropped twice."""

    def __init__(self, pool: Pool) -> None:
        self.references: Counter[int] = Counter()
        self._pool = pool

    def alloc(self) -> int:
        """Take a block with one reference."""
        block: int = self._pool.take(1).item()
        self.references[block] = 1
        return block

    def retain(self, block: int) -> None:
        """One more reference to a block that somebody holds; BadInput if nobody does."""
        if self._pool.state[block] <= 0:
            raise BadInput(f"block {block} is held by nobody")
        self._pool.state[block] += 1
        self.references[block] += 1

    def release(self, blocks: Sequence[int]) -> Int32:
        """Drop one reference for each entry, all or nothing.

        Returns:
            Each block once, with its last reference of this call still to be dropped in the pool.
        """
        times = Counter(blocks)
        for block, count in times.items():
            if count > self.references[block]:
                raise BadInput(f"block {block}: {count} releases, {self.references[block]} references")
        for block, count in times.items():
            self._pool.state[block] -= count - 1
        self.references -= times  # keeps positive counts only
        return np.array(list(times), np.int32)

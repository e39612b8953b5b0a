"""The host tier: where the blocks of swapped-out sequences wait (chapter 3.2.3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Int32
from .pool import Pool


class Parked(NamedTuple):
    """A swapped-out sequence: its host blocks in logical order, and their tokens if they are kept."""

    blocks: Int32
    tokens: Int32 | None


class HostTier:
    """As many blocks as the device has; a row of the tables is either there or here."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = Pool(num_blocks, 0, lambda _: None)
        self.parked: dict[int, Parked] = {}

    def park(self, row: int, count: int, tokens: Int32 | None) -> Int32:
        """Take `count` host blocks for a row; OutOfBlocks if there are fewer."""
        blocks = self.pool.take(count)
        self.parked[row] = Parked(blocks, tokens)
        return blocks

    def count(self, row: int) -> int:
        """How many host blocks a row has."""
        return len(self.parked[row].blocks)

    def leave(self, row: int) -> Parked:
        """Give the host blocks of a row back; what they were."""
        parked = self.parked.pop(row)
        self.pool.push(self.pool.release(parked.blocks[::-1]))
        return parked

    def token_at(self, row: int, positions: range) -> list[int]:
        """Tokens of a parked row at these positions."""
        tokens = self.parked[row].tokens
        return [] if tokens is None else tokens.reshape(-1)[positions.start : positions.stop].tolist()

    def held(self) -> int:
        """Host blocks in use, counted from the pool."""
        return int(np.count_nonzero(self.pool.state))

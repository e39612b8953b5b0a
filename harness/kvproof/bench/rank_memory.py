"""The KV of one rank, a number a slot that depends on every token before it; a model that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.bench.subject import Wrong

U64 = npt.NDArray[np.uint64]
Read: TypeAlias = tuple[int, int]
"""KV at the last position; sum over all positions, 0 if only the last one was read."""
VOCABULARY = 150_000
_WORD = 2**64 - 1


def links(tokens: Sequence[int] | npt.NDArray[np.int32], start: int) -> U64:
    """What each token adds to the KV before it: 64 bits of (token, position), mixed as in SplitMix64."""
    x: U64 = np.asarray(tokens, np.uint64) << np.uint64(32)
    x = x + np.arange(start, start + len(x)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: U64 = x ^ (x >> np.uint64(31))
    return found


def next_token(kv: int) -> int:
    """What the model samples behind a position with this KV."""
    return (kv >> 20) % VOCABULARY


class Expected:
    """What a sequence must read: KV of its last position, and the sum of the KV of all."""

    def __init__(self) -> None:
        self.length = self.last = self.total = 0

    def extend(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Tokens behind the last one."""
        kv = np.cumsum(links(tokens, self.length)) + np.uint64(self.last)
        self.length += len(tokens)
        self.last = int(kv[-1])
        self.total = (self.total + int(kv.sum())) & _WORD


class RankMemory:
    """[blocks, block size] slots; 0 is a slot that was never written."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.slots = np.zeros((blocks, size), np.uint64)

    def compute(self, table: Sequence[int], start: int, tokens: Sequence[int]) -> Read:
        """Write the KV of positions from `start` on behind what the table reads at the one before.

        Reads all of it back whenever the step touches the first position of a block.
        """
        size, flat, end = self.size, self.slots.reshape(-1), start + len(tokens)
        if end > len(table) * size or start < 0:
            raise Wrong(f"a table of {len(table)} blocks for positions {start}..{end - 1}")
        if not all(0 <= b < len(self.slots) for b in table[start // size :]):
            raise Wrong(f"a table names a block that is none of the {len(self.slots)} of its rank")
        before = flat[table[(start - 1) // size] * size + (start - 1) % size] if start else np.uint64(0)
        kv = np.cumsum(links(tokens, start)) + before
        if len(tokens) == 1 and start % size:
            flat[table[start // size] * size + start % size] = kv[0]
            return int(kv[0]), 0
        blocks, positions = np.asarray(table, np.int64), np.arange(start, end)
        flat[blocks[positions // size] * size + positions % size] = kv
        whole = int(self.slots[blocks[: end // size]].sum())
        rest = int(self.slots[table[end // size], : end % size].sum()) if end % size else 0
        return int(kv[-1]), (whole + rest) & _WORD

"""KV memory that the harness keeps for a subject without storage of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvproof.contract import Block
from kvproof.records import UNWRITTEN


class HarnessMemory:
    """(block, offset) -> serial of the write that is there; host blocks too."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[Block, int], int] = {}

    def write(self, block: Block, offset: int, serial: int) -> None:
        self.slots[block, offset] = serial

    def read(self, block: Block, offset: int) -> int:
        return self.slots.get((block, offset), UNWRITTEN)

    def copy(self, pairs: Iterable[tuple[Block, Block]]) -> None:
        """Copy whole blocks, one pair after the other."""
        for source, target in pairs:
            for offset in range(self.block_size):
                self.slots[target, offset] = self.read(source, offset)

    def copy_at_once(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        """Copy whole blocks as if every source was read before any target was written."""
        held = [[self.read(s, o) for o in range(self.block_size)] for s, _ in pairs]
        for (_, target), block in zip(pairs, held, strict=True):
            for offset, serial in enumerate(block):
                self.slots[target, offset] = serial


class SubjectMemory:
    """The real storage of a subject with `data`; it does its own copies."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def write(self, block: Block, offset: int, serial: int) -> None:
        self.manager.write(block, offset, float(serial))

    def read(self, block: Block, offset: int) -> int:
        x = float(self.manager.read(block, offset))
        return int(x) if x == x and x == int(x) else UNWRITTEN

    def copy(self, pairs: Iterable[tuple[Block, Block]]) -> None:
        """Nothing: the subject has moved its contents already."""

    def copy_at_once(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        """Nothing: the subject has moved its contents already."""

"""Adapters that misbehave, for the tests of the harness: each must end in verdicts, never in a traceback."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from kvproof.contract import BadInput, OutOfBlocks, UnknownSequence


class Bare:
    """The six members and no capability: the least that can be judged, and right."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise BadInput("num_blocks and block_size must be positive")
        self.block_size = block_size
        self.pool = list(range(num_blocks))
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def _take(self, count: int) -> list[int]:
        if count > len(self.pool):
            raise OutOfBlocks
        return [self.pool.pop() for _ in range(count)]

    def add(self, seq: int, tokens: list[int]) -> int:
        if seq in self.tables or seq < 0 or not tokens:
            raise BadInput(f"sequence {seq}: a new id that is not negative, and tokens")
        self.tables[seq] = self._take(-(-len(tokens) // self.block_size))
        self.lengths[seq] = len(tokens)
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        if seq not in self.tables:
            raise UnknownSequence(seq)
        length = self.lengths[seq] + len(tokens)
        self.tables[seq] += self._take(-(-length // self.block_size) - len(self.tables[seq]))
        self.lengths[seq] = length

    def commit(self, seq: int, computed: int) -> None:
        pass

    def free(self, seq: int) -> None:
        self.pool += self.tables.pop(seq, [])
        self.lengths.pop(seq, None)

    def table(self, seq: int) -> list[int]:
        if seq not in self.tables:
            raise UnknownSequence(seq)
        return list(self.tables[seq])

    def free_blocks(self) -> int:
        return len(self.pool)


def bare(num_blocks: int, block_size: int) -> Bare:
    return Bare(num_blocks, block_size)


class _Append(Bare):
    """Does something bad at the second append."""

    calls = 0

    def bad(self) -> Any:
        raise NotImplementedError

    def append(self, seq: int, tokens: list[int]) -> None:
        self.calls += 1
        if self.calls == 2:
            self.bad()
        super().append(seq, tokens)


class _Raises(_Append):
    def bad(self) -> Any:
        raise ZeroDivisionError("a fault of its own")


class _Hangs(_Append):
    def bad(self) -> Any:
        while True:
            time.sleep(0.01)


class _Exits(_Append):
    def bad(self) -> Any:
        os._exit(7)


class _SysExits(_Append):
    def bad(self) -> Any:
        sys.exit("enough")


class _Prints(Bare):
    """Right, but noisy on standard output, through Python and below it."""

    def add(self, seq: int, tokens: list[int]) -> int:
        print("x" * 2000)
        os.write(1, b"\x00\xff garbage \n" * 50)
        return super().add(seq, tokens)


class _Nonsense(Bare):
    def table(self, seq: int) -> Any:
        super().table(seq)
        return "seven"


class _NonsenseCount(Bare):
    def free_blocks(self) -> Any:
        return None


def raises(num_blocks: int, block_size: int) -> Bare:
    return _Raises(num_blocks, block_size)


def hangs(num_blocks: int, block_size: int) -> Bare:
    return _Hangs(num_blocks, block_size)


def exits(num_blocks: int, block_size: int) -> Bare:
    return _Exits(num_blocks, block_size)


def sys_exits(num_blocks: int, block_size: int) -> Bare:
    return _SysExits(num_blocks, block_size)


def prints(num_blocks: int, block_size: int) -> Bare:
    return _Prints(num_blocks, block_size)


def nonsense(num_blocks: int, block_size: int) -> Bare:
    return _Nonsense(num_blocks, block_size)


def nonsense_count(num_blocks: int, block_size: int) -> Bare:
    return _NonsenseCount(num_blocks, block_size)


def cannot_be_made(num_blocks: int, block_size: int) -> Bare:
    raise RuntimeError("no GPU here")


def names_what_it_lacks(num_blocks: int, block_size: int) -> Bare:
    made = Bare(num_blocks, block_size)
    made.capabilities = frozenset({"fork", "no-such-capability"})
    return made

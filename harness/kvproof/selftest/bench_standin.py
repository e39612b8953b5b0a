"""A small manager for the tests of the benchmark, and what can be wrong with one.

Also an adapter file: `bench_standin.py:make`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from kvproof.contract import OutOfBlocks, Policy


class Standin:
    """Lists and dicts; prefix cache by chained keys, evicted in LRU order, tail first."""

    capabilities = frozenset({"prefix", "batch", "slots", "steps"})
    policy: ClassVar[Policy] = {"evict": "lru-tail"}

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.size = block_size
        self.unused = list(range(num_blocks))
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.found: dict[tuple[int, tuple[int, ...]], int] = {}
        self.key: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.refs: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.tokens: dict[int, list[int]] = {}

    def _take(self) -> int:
        if not self.unused:
            victim, _ = self.idle.popitem(last=False)
            self.found.pop(self.key.pop(victim), None)
            self.unused.append(victim)
        block = self.unused.pop()
        self.refs[block] = 1
        return block

    def _chunk(self, seq: int, i: int) -> tuple[int, tuple[int, ...]]:
        before = self.tables[seq][i - 1] if i else -1
        return before, tuple(self.tokens[seq][i * self.size : (i + 1) * self.size])

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        table: list[int] = []
        self.tables[seq], self.tokens[seq] = table, [int(t) for t in tokens]
        for i in range((len(tokens) - 1) // self.size):
            block = self.found.get(self._chunk(seq, i))
            if block is None:
                break
            table.append(block)
        need = -(-len(tokens) // self.size) - len(table)
        if need > self.free_blocks() - sum(b in self.idle for b in table):
            del self.tables[seq], self.tokens[seq]
            raise OutOfBlocks(f"{need} blocks needed")
        hits = len(table)
        for block in table:
            self.refs[block] = self.refs.get(block, 0) + 1
            self.idle.pop(block, None)
        table += [self._take() for _ in range(need)]
        return hits * self.size

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        if len(self.tokens[seq]) % self.size == 0:
            self.tables[seq].append(self._take())
        self.tokens[seq] += tokens

    def commit(self, seq: int, computed: int) -> None:
        for i in range(computed // self.size):
            block, chunk = self.tables[seq][i], self._chunk(seq, i)
            if block not in self.key and chunk not in self.found:
                self.key[block], self.found[chunk] = chunk, block

    def free(self, seq: int) -> None:
        del self.tokens[seq]
        for block in reversed(self.tables.pop(seq)):
            self.refs[block] -= 1
            if not self.refs[block]:
                if block in self.key:
                    self.idle[block] = None
                else:
                    self.unused.append(block)

    def table(self, seq: int) -> list[int]:
        return list(self.tables[seq])

    def free_blocks(self) -> int:
        return len(self.unused) + len(self.idle)

    def slots(self, seq: int, lo: int, hi: int) -> list[int]:
        return [self.tables[seq][p // self.size] * self.size + p % self.size for p in range(lo, hi)]

    def append_batch(self, seqs: Sequence[int], tokens: Sequence[int]) -> list[int]:
        for seq, token in zip(seqs, tokens, strict=True):
            self.append(int(seq), [int(token)])
        return [self.slots(int(s), len(self.tokens[int(s)]) - 1, len(self.tokens[int(s)]))[0] for s in seqs]

    def batch(self, seqs: Sequence[int]) -> tuple[Any, Any, Any]:
        rows = [self.tables[s] for s in seqs]
        table = np.full((len(rows), max(map(len, rows), default=0)), -1, dtype=np.int32)
        for i, row in enumerate(rows):
            table[i, : len(row)] = row
        lengths = np.array([len(self.tokens[s]) for s in seqs], dtype=np.int32)
        return table, np.array([len(r) for r in rows], dtype=np.int32), lengths


class Uncached(Standin):
    """The same without its cache."""

    capabilities = frozenset({"batch", "slots", "steps"})

    def commit(self, seq: int, computed: int) -> None:
        pass


class Recorder(Standin):
    """Has room for the tokens of every block from the start on."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.record = np.zeros((num_blocks, block_size), dtype=np.int32)


class Fifo(Standin):
    """Says lru-tail, but a hit does not make a block recent again."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.age: dict[int, int] = {}

    def free(self, seq: int) -> None:
        for block in reversed(self.tables[seq]):
            self.age.setdefault(block, len(self.age))
        super().free(seq)
        for block in sorted(self.idle, key=lambda b: self.age[b]):
            self.idle.move_to_end(block)

    def _take(self) -> int:
        block = super()._take()
        self.age.pop(block, None)
        return block


class Boaster(Standin):
    """Says that all but the last block of any prompt is cached."""

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        super().add(seq, tokens)
        return (len(tokens) - 1) // self.size * self.size


class Leaker(Standin):
    """Loses a block with every free."""

    def free(self, seq: int) -> None:
        super().free(seq)
        if self.unused:
            self.unused.pop()


class Greedy(Standin):
    """Takes a block more than it needs, undeclared, as soon as a sequence grows."""

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        if len(self.tokens[seq]) >= (len(self.tables[seq]) - 1) * self.size:
            self.tables[seq].append(self._take())
        self.tokens[seq] += tokens


def make(num_blocks: int, block_size: int) -> Standin:
    return Standin(num_blocks, block_size)


def make_recorder(num_blocks: int, block_size: int) -> Recorder:
    return Recorder(num_blocks, block_size)


def make_uncached(num_blocks: int, block_size: int) -> Standin:
    return Uncached(num_blocks, block_size)


class Slowed(Uncached):
    """A batch of appends takes 1.3 times what it takes without this."""

    def append_batch(self, seqs: Sequence[int], tokens: Sequence[int]) -> list[int]:
        start = time.perf_counter()
        slots = super().append_batch(seqs, tokens)
        end = start + 1.3 * (time.perf_counter() - start)
        while time.perf_counter() < end:
            pass
        return slots


def make_slowed(num_blocks: int, block_size: int) -> Slowed:
    return Slowed(num_blocks, block_size)

"""Planted faults of eviction: EVICT."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvproof_impls.reference.arrays import Index, Int32, Int64
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.pool import Pool
from kvproof_impls.reference.prefix import PrefixCache

from .registry import fault


@fault(
    "KVP-EVICT-001",
    "a matched block stays in the eviction queue while it is read",
    model="sgl-project/mini-sglang#52",
)
class ReadersIgnored(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        n = super().add(seq, tokens, keys)
        hit = self.tables.blocks(self.tables.row(seq))[: n // self.block_size]
        self.pool.queue(hit[self.pool.state[hit] == 1])
        return n

    def _release(self, blocks: Int32) -> None:
        super()._release(blocks[self.pool.state[blocks] > 0])


@fault(
    "KVP-EVICT-002",
    "a block that is used again is still found under its old key, and only its own tokens are compared",
    model="GeeeekExplorer/nano-vllm#163",
)
def stale_key(num_blocks: int, block_size: int) -> Manager:
    class OwnTokensCache(PrefixCache):
        def _same(self, blocks: Index, tokens: Int32, parents: Int64) -> Any:
            return super()._same(blocks, tokens, self.parent.take(blocks))

    class Faulty(Manager):
        prefix_type = OwnTokensCache

        def _forget(self, blocks: Int32) -> None:
            pass

    return Faulty(num_blocks, block_size)


@fault("KVP-EVICT-003", "FIFO under the name of LRU", model="vllm-project/vllm#51482")
def fifo_called_lru(num_blocks: int, block_size: int) -> Manager:
    clock = itertools.count()
    born: dict[int, int] = {}

    class FifoPool(Pool):
        def queue(self, blocks: Index) -> None:
            for block in blocks.tolist():
                born.setdefault(block, next(clock))
            super().queue(blocks)

        def evict(self, count: int) -> Int32:
            oldest = sorted(self.queued().tolist(), key=born.__getitem__)[:count]
            for block in oldest:
                del born[block]
            victims = np.array(oldest, np.int32)
            self.evictable -= count
            self.state[victims] = 0
            self._on_evict(victims)
            return victims

    class Faulty(Manager):
        pool_type = FifoPool

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-EVICT-003",
    "the head of a sequence is evicted before its tail",
    model="jianzhnie/mini-vllm: stale queue positions evict a head before its tail",
)
class HeadFirst(Manager):
    def _release(self, blocks: Int32) -> None:
        super()._release(blocks[::-1])


@fault(
    "KVP-EVICT-004",
    "cached blocks are never taken for new work",
    model="K-RAMYA05/mini-vLLM: the cache pins blocks and is trimmed by entry count, never by demand",
)
def cache_pins_blocks(num_blocks: int, block_size: int) -> Manager:
    class PinnedPool(Pool):
        @property
        def available(self) -> int:
            return self.free

    class Faulty(Manager):
        pool_type = PinnedPool

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-EVICT-005",
    "entries of the queue that are skipped count as evicted",
    model="sgl-project/sglang#5499",
)
def skipped_victims_counted(num_blocks: int, block_size: int) -> Manager:
    class CountingPool(Pool):
        def evict(self, count: int) -> Int32:
            head, tail = self._head, min(self._tail, self._head + count)
            places = np.arange(head, tail)
            alive = self.state[self._log[places]] == -1 - places
            victims = super().evict(int(np.count_nonzero(alive)))
            self._head = max(self._head, tail)
            return victims

    class Faulty(Manager):
        pool_type = CountingPool

    return Faulty(num_blocks, block_size)

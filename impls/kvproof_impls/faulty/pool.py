"""Planted faults of the pool: POOL and FREE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kvproof.contract import OutOfBlocks, Refused
from kvproof_impls.reference.arrays import Index, Int32
from kvproof_impls.reference.inputs import parse_keys, token_array
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.pool import Pool

from .registry import fault


@fault(
    "KVP-POOL-001",
    "an append that does not fit loses the block it had begun with",
    model="NVIDIA/TensorRT-LLM#12834",
)
class AppendLeaks(Manager):
    def append(self, seq: int, tokens: Sequence[int]) -> None:
        try:
            super().append(seq, tokens)
        except (OutOfBlocks, Refused):
            self.pool.take(min(1, self.pool.available))
            raise


@fault(
    "KVP-POOL-001",
    "an add that does not fit loses the block it had begun with",
    model="sgl-project/sglang#35270",
)
class AddLeaks(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        try:
            return super().add(seq, tokens, keys)
        except (OutOfBlocks, Refused):
            self.pool.take(min(1, self.pool.available))
            raise


@fault(
    "KVP-POOL-002",
    "the first release of a shared block puts it back though others hold it",
    model="LMCache/LMCache#5005",
)
class SharedBlockQueued(Manager):
    def _release(self, blocks: Int32) -> None:
        held = blocks[self.pool.state[blocks] > 0]
        self.pool.state[held] = 1
        super()._release(held)


@fault(
    "KVP-POOL-003",
    "blocks are lost at release, and the counter still counts them",
    model="NVIDIA/TensorRT-LLM#1687",
)
def lost_blocks_counted(num_blocks: int, block_size: int) -> Manager:
    class LossyPool(Pool):
        lost = 0

        @property
        def available(self) -> int:
            return super().available + self.lost

        def take(self, count: int) -> Int32:
            if count > self.available - self.lost:
                raise OutOfBlocks(f"{count} blocks needed")
            return super().take(count)

        def push(self, blocks: Index) -> None:
            super().push(blocks[1:])
            self.state[blocks[:1]] = 0
            self.lost += len(blocks[:1])

    class Faulty(Manager):
        pool_type = LossyPool

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-POOL-004",
    "an append that does not fit leaves the blocks it got in the table",
    model="lightseekorg/tokenspeed#767",
)
class AppendKeepsItsPart(Manager):
    def append(self, seq: int, tokens: Sequence[int]) -> None:
        try:
            super().append(seq, tokens)
        except (OutOfBlocks, Refused):
            self.tables.grow(self.tables.live_row(seq), self.pool.take(self.pool.available))
            raise


@fault(
    "KVP-POOL-004",
    "an add that does not fit keeps its references to the blocks it matched",
    model="vllm-project/vllm#11565",
)
class FailedAddKeepsReferences(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        try:
            return super().add(seq, tokens, keys)
        except (OutOfBlocks, Refused):
            hit = self._cache().match(token_array(tokens), *parse_keys(keys))
            self.pool.retain(hit.blocks)
            raise


@fault("KVP-POOL-005", "ids wrap around, and block 0 is handed out", model="ovg-project/kvcached#398")
def reserved_block_handed_out(num_blocks: int, block_size: int) -> Manager:
    class WrappingPool(Pool):
        def take(self, count: int) -> Int32:
            blocks = super().take(count)
            last = blocks == len(self.state) - 1
            if last.any():
                self.state[0], self.state[-1] = 1, 0
                blocks[last] = 0
            return blocks

    class Faulty(Manager):
        pool_type = WrappingPool

    return Faulty(num_blocks, block_size, reserved=1)


@fault(
    "KVP-POOL-006",
    "an append that fits the last block takes another one all the same",
    model="lmjlmj1234/mini-vllm-continuous-batching-lab: allocate(0) takes the whole pool",
)
def needless_block(num_blocks: int, block_size: int) -> Manager:
    spare: dict[int, Int32] = {}

    class Faulty(Manager):
        def append(self, seq: int, tokens: Sequence[int]) -> None:
            before = self.pool.available
            super().append(seq, tokens)
            if self.pool.available == before and before and seq not in spare:
                spare[seq] = self.pool.take(1)

        def free(self, seq: int) -> None:
            super().free(seq)
            self.pool.push(spare.pop(seq, np.empty(0, np.int32)))

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-POOL-006",
    "with an empty pool an append is refused though it needs no block",
    model="vllm-project/vllm#17474",
)
class ZeroBlocksRefused(Manager):
    def append(self, seq: int, tokens: Sequence[int]) -> None:
        if not self.pool.available and seq in self.tables.row_of:
            raise OutOfBlocks("the pool is empty")
        super().append(seq, tokens)


@fault(
    "KVP-POOL-007",
    "each allocation walks over the whole pool to count its free blocks",
    model="lmjlmj1234/mini-vllm-continuous-batching-lab: sums over the pool at each allocation",
)
def linear_scan(num_blocks: int, block_size: int) -> Manager:
    class ScannedPool(Pool):
        def take(self, count: int) -> Int32:
            if count > sum(1 for owners in self.state.tolist() if owners <= 0):
                raise OutOfBlocks(f"{count} blocks needed")
            return super().take(count)

    class Faulty(Manager):
        pool_type = ScannedPool

    return Faulty(num_blocks, block_size)


class ListPool(Pool):
    """Keeps its blocks in a list besides."""

    def __init__(self, num_blocks: int, reserved: int, on_evict: Callable[[Int32], None]) -> None:
        super().__init__(num_blocks, reserved, on_evict)
        self.line = list(range(num_blocks))


@fault("KVP-POOL-007", "free blocks are taken from the front of a list", model="none known")
def taken_from_the_front(num_blocks: int, block_size: int) -> Manager:
    class TakenPool(ListPool):
        def take(self, count: int) -> Int32:
            for _ in range(count):
                self.line.append(self.line.pop(0))  # all the others move up
            return super().take(count)

    class Faulty(Manager):
        pool_type = TakenPool

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-POOL-007",
    "a block that is found in the cache is taken out of the middle of a list of free ones",
    model="GeeeekExplorer/nano-vllm: each hit removes its block from a deque",
)
def hits_search_the_line(num_blocks: int, block_size: int) -> Manager:
    class FoundPool(ListPool):
        def retain(self, blocks: Int32) -> None:
            for block in blocks.tolist():
                self.line.remove(block)
                self.line.append(block)
            super().retain(blocks)

    class Faulty(Manager):
        pool_type = FoundPool

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-POOL-007",
    "each free copies the list of free blocks",
    model="sgl-project/sglang: torch.cat of the freed pages and all free ones",
)
def free_copies_the_list(num_blocks: int, block_size: int) -> Manager:
    class CopyingPool(Pool):
        def __init__(self, num_blocks: int, reserved: int, on_evict: Callable[[Int32], None]) -> None:
            super().__init__(num_blocks, reserved, on_evict)
            self.line = np.arange(num_blocks, dtype=np.int32)

        def push(self, blocks: Index) -> None:
            self.line = np.concatenate((blocks, self.line[len(blocks) :]))
            super().push(blocks)

    class Faulty(Manager):
        pool_type = CopyingPool

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-POOL-008",
    "blocks that copy-on-write has taken never come back",
    model="sgl-project/sglang#27586",
)
def copied_block_forgotten(num_blocks: int, block_size: int) -> Manager:
    copied: set[int] = set()

    class Faulty(Manager):
        def _copy_on_write(self, row: int, index: int, target: int) -> None:
            super()._copy_on_write(row, index, target)
            copied.add(target)

        def _release(self, blocks: Int32) -> None:
            super()._release(blocks[[block not in copied for block in blocks.tolist()]])

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-FREE-001",
    "freeing a sequence again queues its old blocks again",
    model="manankapoor23/KV-Paged-Attention: free twice, allocate twice: one page, two owners",
)
def freed_twice(num_blocks: int, block_size: int) -> Manager:
    gone: dict[int, Int32] = {}

    class Faulty(Manager):
        def free(self, seq: int) -> None:
            if seq in gone and seq not in self.tables.row_of:
                self.pool.push(gone.pop(seq))
                return
            blocks = self.tables.blocks(self.tables.row(seq)).copy()
            super().free(seq)
            gone[seq] = blocks[self.pool.state[blocks] == 0]

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-FREE-001",
    "releasing a free block queues it again",
    model="correaswebert/paged-attention: no guard against a second free",
)
class ReleasedTwice(Manager):
    def release(self, block: int) -> None:
        if self.pool.state[block] == 0:
            self.pool.push(np.array([block]))
        else:
            super().release(block)


@fault(
    "KVP-FREE-002",
    "a batched release queues every entry whose final count is zero",
    model="vllm-project/vllm#42571",
)
class BatchQueuedByEntry(Manager):
    def release_many(self, blocks: Sequence[int]) -> None:
        super().release_many(blocks)
        again = [b for i, b in enumerate(blocks) if b in blocks[:i] and self.pool.state[b] == 0]
        self.pool.push(np.array(again, np.int32))


@fault(
    "KVP-FREE-003",
    "a reference to a free block brings it back to life, and it stays in the free list",
    model="VARUN3WARE/Paged-Attention: a free block can be retained",
)
class FreeBlockRetained(Manager):
    def retain(self, block: int) -> None:
        self.pool.state[block] = max(0, self.pool.state.item(block)) + 1
        self.raw.references[block] += 1


@fault(
    "KVP-FREE-004",
    "freeing a swapped-out sequence leaks its host blocks",
    model="NVIDIA/TensorRT-LLM#15018",
)
class HostBlocksLeak(Manager):
    def free(self, seq: int) -> None:
        self.tables.away.discard(self.tables.row(seq))
        super().free(seq)


@fault(
    "KVP-FREE-004",
    "freeing a sequence gives back its computed blocks only",
    model="vllm-project/vllm#44100",
)
class UncomputedBlocksLeak(Manager):
    def free(self, seq: int) -> None:
        row = self.tables.row(seq)
        if row not in self.tables.away:
            self.tables.shrink(row, self.tables.blocks_of(self.tables.computed.item(row)))
        super().free(seq)

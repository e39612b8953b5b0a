"""VARUN3WARE/Paged-Attention, read from a checkout: forkable caches, a block allocator, real tensors."""

import torch

from kvproof.contract import OutOfBlocks, require_new, require_sizes
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import open_package

open_package("paged_attention")
from paged_attention.allocator import BlockAllocator, OutOfMemoryError  # noqa: E402
from paged_attention.kv_cache import PagedKVCache  # noqa: E402


class VarunManager(ByToken):
    capabilities = frozenset({"fork", "multi", "refcount", "blocks", "data"})
    full = OutOfMemoryError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool, self.live = BlockAllocator(num_blocks, block_size, 1), {}

    def start(self, seq: int, tokens: list[int]) -> PagedKVCache:
        return PagedKVCache(self.pool.block_size, 1, self.pool, seq)

    def grow(self, cache: PagedKVCache, token: int) -> None:  # as its batches do
        cache.append_token_kv(torch.zeros(1), torch.zeros(1))

    def fork(self, parent: int, child: int) -> None:
        require_new(child, self.live)
        self.live[child] = self.live[parent].fork()

    def free(self, seq: int) -> None:
        self.live.pop(seq).free_all()

    def table(self, seq: int) -> list[int]:
        return [entry.phys_block_id for entry in self.live[seq].block_table]

    def free_blocks(self) -> int:
        return self.pool.get_num_free_blocks()

    def refcount(self, block: int) -> int:
        return self.pool.blocks[block].refcount

    def write(self, block: int, offset: int, x: float) -> None:
        self.pool.blocks[block].key_data[offset] = x

    def read(self, block: int, offset: int) -> float:
        return float(self.pool.blocks[block].key_data[offset])

    def alloc(self) -> int:
        if not self.pool.get_num_free_blocks():
            raise OutOfBlocks("no free block")
        return self.pool.allocate()

    def retain(self, block: int) -> None:
        self.pool.inc_ref(block)

    def release(self, block: int) -> None:
        if self.pool.blocks[block].refcount:  # else it raises ValueError
            self.pool.free(block)


make = VarunManager

"""VARUN3WARE/Paged-Attention, read from a checkout: forkable caches over a block allocator, on real tensors."""

import functools

import torch

from kvproof.contract import BadInput, OutOfBlocks, require_new, require_tokens
from kvproof_impls.checkout import open_package

open_package("paged_attention")
from paged_attention.allocator import BlockAllocator, OutOfMemoryError  # noqa: E402
from paged_attention.kv_cache import PagedKVCache  # noqa: E402


class VarunManager:
    capabilities = frozenset({"fork", "multi", "refcount", "blocks", "data"})

    def __init__(self, num_blocks: int, block_size: int, grow: str = "append_token_kv") -> None:
        self.pool, self.grow, self.live = BlockAllocator(num_blocks, block_size, 1), grow, {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        self.live[seq] = PagedKVCache(self.pool.block_size, 1, self.pool, seq)
        try:
            self.append(seq, tokens)
        except Exception:
            self.free(seq)  # what it took is left to the caller
            raise
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        cache = self.live[seq]
        require_tokens(tokens)
        try:
            for _ in tokens:
                getattr(cache, self.grow)(torch.zeros(1), torch.zeros(1))
        except OutOfMemoryError as error:
            raise OutOfBlocks(str(error)) from None

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache

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
        try:
            return self.pool.allocate()
        except OutOfMemoryError as error:
            raise OutOfBlocks(str(error)) from None

    def retain(self, block: int) -> None:
        self.pool.inc_ref(block)

    def release(self, block: int) -> None:
        try:
            self.pool.free(block)
        except ValueError as error:
            raise BadInput(str(error)) from None


make = VarunManager
"""Grows as its batches do."""
make_beam = functools.partial(VarunManager, grow="cow_append")
"""Grows as its beam search does."""

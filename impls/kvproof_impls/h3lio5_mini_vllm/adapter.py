"""h3lio5/mini-vllm, read from a checkout: a paged KV cache with pools of its own for keys and values."""

import torch

from kvproof.contract import OutOfBlocks, require_new, require_tokens
from kvproof_impls.checkout import open_package

open_package("mini_vllm")
from mini_vllm.paged import KVShape, PagedBlockPool, PagedKVCache, SequencePage  # noqa: E402


class PagedManager:
    capabilities = frozenset({"data"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        sizes = {"blocks_per_layer": num_blocks, "block_tokens": block_size}
        pool = PagedBlockPool(KVShape(1, 1, 1), **sizes, dtype=torch.float64, device="cpu")
        self.cache, self.live = PagedKVCache(pool), dict[int, SequencePage]()

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        self.live[seq] = self.cache.new_sequence()
        try:
            for token in tokens:
                self.append(seq, [token])
        except OutOfBlocks:
            self.free(seq)  # what it took is left to the caller
            raise
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        kv = torch.zeros(1, 1, 1, dtype=torch.float64)
        try:
            self.cache.append_layer(self.live[seq], 0, kv, kv)
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from None

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache

    def free(self, seq: int) -> None:
        self.cache.release(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return [ref.block for ref in self.live[seq].keys[0]]

    def free_blocks(self) -> int:
        return len(self.cache.pool._free_keys[0])

    def write(self, block: int, offset: int, x: float) -> None:
        self.cache.pool.K[0, block, 0, offset, 0] = x

    def read(self, block: int, offset: int) -> float:
        return float(self.cache.pool.K[0, block, 0, offset, 0])


make = PagedManager

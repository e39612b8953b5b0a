"""h3lio5/mini-vllm, read from a checkout: a paged KV cache with pools of its own for keys and values."""

import torch

from kvproof.contract import require_sizes
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import open_package

open_package("mini_vllm")
from mini_vllm.paged import KVShape, PagedBlockPool, PagedKVCache, SequencePage  # noqa: E402

KV = torch.zeros(1, 1, 1, dtype=torch.float64)


class PagedManager(ByToken):
    capabilities = frozenset({"data"})
    full = RuntimeError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        sizes = {"blocks_per_layer": num_blocks, "block_tokens": block_size}
        self.pool = PagedBlockPool(KVShape(1, 1, 1), **sizes, dtype=torch.float64, device="cpu")
        self.cache, self.live = PagedKVCache(self.pool), {}

    def start(self, seq: int, tokens: list[int]) -> SequencePage:
        return self.cache.new_sequence()

    def grow(self, pages: SequencePage, token: int) -> None:
        self.cache.append_layer(pages, 0, KV, KV)

    def free(self, seq: int) -> None:
        self.cache.release(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return [ref.block for ref in self.live[seq].keys[0]]

    def free_blocks(self) -> int:
        return len(self.pool._free_keys[0])

    def write(self, block: int, offset: int, x: float) -> None:
        self.pool.K[0, block, 0, offset, 0] = x

    def read(self, block: int, offset: int) -> float:
        return float(self.pool.K[0, block, 0, offset, 0])


make = PagedManager

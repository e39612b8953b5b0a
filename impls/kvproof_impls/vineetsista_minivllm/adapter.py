"""vineetsista/minivllm, read from a checkout: a paged KV cache for each sequence over one allocator."""

import types

import torch

from kvproof.contract import require_sizes
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import open_package

open_package("minivllm")
from minivllm.paged_cache import BlockAllocator, PagedKVCache  # noqa: E402

MODEL = types.SimpleNamespace(num_key_value_heads=1, head_dim=1, num_hidden_layers=1, dtype=torch.float64)


class VineetManager(ByToken):  # its prefix cache copies KV and shares no block
    capabilities = frozenset({"data"})
    full = RuntimeError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool, self.live = BlockAllocator(MODEL, num_blocks, block_size), {}

    def start(self, seq: int, tokens: list[int]) -> PagedKVCache:
        return PagedKVCache(MODEL, 0, self.pool.block_size, self.pool)

    def grow(self, cache: PagedKVCache, token: int) -> None:
        kv = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
        cache.extend(0, kv, kv)
        cache.advance(1)

    def free(self, seq: int) -> None:
        self.live.pop(seq).free()

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return self.pool.num_free

    def write(self, block: int, offset: int, x: float) -> None:
        self.pool.k[0][block, offset, 0, 0] = x

    def read(self, block: int, offset: int) -> float:
        return float(self.pool.k[0][block, offset, 0, 0])


make = VineetManager

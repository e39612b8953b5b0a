"""vineetsista/minivllm, read from a checkout: a paged KV cache for each sequence over one allocator."""

import types

import torch

from kvproof.contract import OutOfBlocks, require_new, require_tokens
from kvproof_impls.checkout import open_package

open_package("minivllm")
from minivllm.paged_cache import BlockAllocator, PagedKVCache  # noqa: E402

MODEL = types.SimpleNamespace(num_key_value_heads=1, head_dim=1, num_hidden_layers=1, dtype=torch.float64)


class VineetManager:
    capabilities = frozenset({"multi", "data"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool, self.live = BlockAllocator(MODEL, num_blocks, block_size), dict[int, PagedKVCache]()

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        self.live[seq] = PagedKVCache(MODEL, 0, self.pool.block_size, self.pool)
        try:
            self.append(seq, tokens)
        except Exception:
            self.free(seq)  # what it took is left to the caller
            raise
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        cache = self.live[seq]
        require_tokens(tokens)
        kv = torch.zeros(1, 1, len(tokens), 1, dtype=torch.float64)
        try:
            cache.extend(0, kv, kv)
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from None
        cache.advance(len(tokens))

    def commit(self, seq: int, computed: int) -> None:
        pass  # its prefix cache copies KV and shares no block

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

"""K-RAMYA05/mini-vLLM, read from a checkout: its block allocator and prefix cache."""

from typing import Any

import torch

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package

open_package("mini_vllm")
from mini_vllm.block_manager import BlockTable, KVCache  # noqa: E402
from mini_vllm.prefix_cache import PrefixCache  # noqa: E402


class RamyaManager:
    capabilities = frozenset({"prefix", "defer"})
    guard = 128  # blake2b of 16 bytes over the whole prefix

    def __init__(self, num_blocks: int, block_size: int, entries: int = 16384) -> None:
        require_sizes(num_blocks, block_size)
        self.kv = KVCache(1, 1, 1, num_blocks, block_size, torch.float64, "cpu", num_blocks)
        self.cache, self.live = PrefixCache(self.kv, block_size, entries), dict[int, Any]()

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        blocks, cached = self.cache.lookup(tokens)
        table = BlockTable(list(blocks))
        self.grow(table, len(tokens))
        self.kv.retain_blocks(blocks)
        self.live[seq] = [table, list(tokens), len(tokens)]
        return cached

    def grow(self, table: BlockTable, length: int) -> None:
        missing = self.kv.num_blocks_needed(length) - len(table)
        if not self.kv.allocator.can_allocate(missing):
            raise OutOfBlocks(f"no {missing} free blocks")
        for _ in range(missing):
            table.append(self.kv.allocator.allocate())

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        self.grow(self.live[seq][0], self.live[seq][2] + 1)
        self.live[seq][2] += 1

    def commit(self, seq: int, computed: int) -> None:
        table, prompt, _ = self.live[seq]
        if computed >= len(prompt):  # they publish a prompt when all of it is computed, and nothing else
            self.cache.register(prompt, table.as_list())

    def free(self, seq: int) -> None:
        self.kv.allocator.free_many(self.live.pop(seq)[0].as_list())

    def table(self, seq: int) -> list[int]:
        return self.live[seq][0].as_list()

    def free_blocks(self) -> int:
        return self.kv.allocator.num_free

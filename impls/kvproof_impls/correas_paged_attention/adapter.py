"""correaswebert/paged-attention, read from a checkout: a pool of blocks; its scheduler is in scheduler.py."""

import collections

from kvproof.contract import BadInput, OutOfBlocks, require_sizes
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import open_folder

open_folder("src", "model", "request")
import cache_manager  # noqa: E402

from kvproof_impls.correas_paged_attention.scheduler import make_scheduler  # noqa: E402, F401


class CorreasManager(ByToken):
    capabilities = frozenset({"blocks"})
    full = OutOfBlocks

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool = cache_manager.KVCacheManager(1, num_blocks, block_size, 1, 1, device="cpu")
        self.live = {}
        self.sharers: collections.Counter[int] = collections.Counter()  # it counts no references

    def start(self, seq: int, tokens: list[int]) -> tuple[list[int], list[int]]:
        return [], []

    def grow(self, request: tuple[list[int], list[int]], token: int) -> None:
        known, table = request
        if len(known) % self.pool.block_size == 0:  # as its scheduler does
            table.append(self.alloc())
        known.append(token)

    def free(self, seq: int) -> None:
        for block in self.live.pop(seq)[1]:
            self.pool.free(block)

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq][1])

    def free_blocks(self) -> int:
        return len(self.pool.free_blocks)

    def alloc(self) -> int:
        if not self.pool.free_blocks:
            raise OutOfBlocks("no free block")  # else it raises MemoryError
        return self.pool.allocate()

    def retain(self, block: int) -> None:
        if block in self.pool.free_blocks:
            raise BadInput(f"block {block} is free")
        self.sharers[block] += 1

    def release(self, block: int) -> None:
        if not self.sharers[block]:
            self.pool.free(block)
        self.sharers[block] = max(0, self.sharers[block] - 1)


make = CorreasManager

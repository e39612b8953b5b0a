"""correaswebert/paged-attention, read from a checkout: a pool of blocks; its scheduler is in scheduler.py."""

import collections

from kvproof.contract import BadInput, OutOfBlocks, require_new, require_tokens
from kvproof_impls.checkout import open_folder

open_folder("src", "model", "request")
import cache_manager  # noqa: E402

from kvproof_impls.correas_paged_attention.scheduler import make_scheduler  # noqa: E402, F401


class CorreasManager:
    capabilities = frozenset({"blocks"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = cache_manager.KVCacheManager(1, num_blocks, block_size, 1, 1, device="cpu")
        self.live: dict[int, tuple[list[int], list[int]]] = {}
        self.owners: collections.Counter[int] = collections.Counter()  # it counts none

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        self.live[seq] = [], []
        try:
            for token in tokens:
                self.append(seq, [token])
        except OutOfBlocks:
            self.free(seq)
            raise
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        known, table = self.live[seq]
        if len(known) % self.pool.block_size == 0:  # as its scheduler does
            table.append(self.alloc())
        known += tokens

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache

    def free(self, seq: int) -> None:
        for block in self.live.pop(seq)[1]:
            self.pool.free(block)

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq][1])

    def free_blocks(self) -> int:
        return len(self.pool.free_blocks)

    def alloc(self) -> int:
        try:
            return self.pool.allocate()
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from None

    def retain(self, block: int) -> None:
        if block in self.pool.free_blocks:
            raise BadInput(f"block {block} is free")
        self.owners[block] += 1  # besides the first

    def release(self, block: int) -> None:
        if self.owners[block]:
            self.owners[block] -= 1
        else:
            self.pool.free(block)


make = CorreasManager

"""Leul-Negash/paged-attention-from-scratch: its prefix allocator: whole blocks, none freed."""

from kvproof.contract import OutOfBlocks, Refused, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package

open_package("paged_attention")
from paged_attention.prefix_cache import PrefixCachingAllocator  # noqa: E402


class PrefixManager:
    capabilities = frozenset({"prefix"})
    guard = 128  # blake2b of 16 bytes over the block's own tokens, which are not compared

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool, self.live = PrefixCachingAllocator(num_blocks, block_size), dict[int, list[int]]()

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        if len(tokens) % self.pool.block_size:
            raise Refused(f"{len(tokens)} tokens: it admits whole blocks of {self.pool.block_size}")
        try:
            admitted = self.pool.admit(tokens)
        except IndexError as error:
            raise OutOfBlocks(str(error)) from None
        self.live[seq] = admitted["page_table"]
        return admitted["reused_blocks"] * self.pool.block_size

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        raise Refused(f"sequence {self.live[seq]} does not grow")

    def commit(self, seq: int, computed: int) -> None:
        pass  # published already

    def free(self, seq: int) -> None:  # it has none: what is kept in its map must not be taken again
        for block in self.live.pop(seq):
            self.pool.blocks[block].ref_count -= 1

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq])

    def free_blocks(self) -> int:
        return len(self.pool.free)


make = PrefixManager

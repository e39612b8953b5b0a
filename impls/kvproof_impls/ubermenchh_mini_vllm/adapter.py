"""ubermenchh/mini-vllm, read from a checkout: a block manager with a prefix cache keyed by content."""

import itertools

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package

open_package("core")
from core.block_manager import BlockAllocator, BlockSpaceManager  # noqa: E402


class UberManager:
    # no defer: a block can be found as soon as it is taken
    capabilities = frozenset({"prefix", "probe"})
    guard = 64  # Python's hash of the block's own tokens, which are not compared

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool = BlockAllocator(num_blocks, block_size)
        self.manager, self.lengths, self.size = BlockSpaceManager(self.pool), dict[int, int](), block_size

    def can_add(self, seq: int, tokens: list[int]) -> bool:
        return self.manager.can_allocate_request(tokens)

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.lengths)
        require_tokens(tokens)
        keys = map(hash, zip(*[iter(tokens)] * self.size, strict=False))  # of full blocks
        cached = len(list(itertools.takewhile(self.manager.cached_blocks.__contains__, keys)))
        try:
            self.manager.allocate_request(seq, tokens)
        except (ValueError, RuntimeError) as error:
            raise OutOfBlocks(str(error)) from None
        self.lengths[seq] = len(tokens)
        return cached * self.size

    def can_append(self, seq: int, n: int = 1) -> bool:  # it has no such probe
        return self.lengths[seq] % self.size != 0 or self.pool.get_num_free_blocks() > 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        if not self.can_append(seq):
            raise OutOfBlocks("no free block")
        self.manager.append_slot(seq, self.lengths[seq])
        self.lengths[seq] += 1

    def commit(self, seq: int, computed: int) -> None:
        pass  # published already

    def free(self, seq: int) -> None:
        self.manager.free(seq)
        self.lengths.pop(seq, None)

    def table(self, seq: int) -> list[int]:
        return [block.block_num for block in self.manager.block_tables[seq]]

    def free_blocks(self) -> int:
        idle = [b for b in self.manager.cached_blocks.values() if b.ref_count == 0]
        return self.pool.get_num_free_blocks() + len(idle)


make = UberManager

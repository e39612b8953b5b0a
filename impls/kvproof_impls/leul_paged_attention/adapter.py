"""Leul-Negash/paged-attention-from-scratch, read from a checkout: its copy-on-write allocator."""

import copy

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package

open_package("paged_attention", "mock_llm")
from paged_attention.cow import CoWAllocator, Sequence  # noqa: E402


class LeulManager:
    capabilities = frozenset({"fork", "refcount", "data"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool, self.live = CoWAllocator(num_blocks, block_size), dict[int, Sequence]()

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        try:
            (self.live[seq],) = self.pool.fork(tokens, 1)
        except IndexError as error:
            raise OutOfBlocks(str(error)) from None
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        try:
            self.pool.append(self.live[seq], tokens[0])
        except IndexError as error:
            raise OutOfBlocks(str(error)) from None

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache in this one

    def fork(self, parent: int, child: int) -> None:  # theirs lays a prompt and shares it in one call
        require_new(child, self.live)
        self.live[child] = copy.deepcopy(self.live[parent])
        for block in self.live[child].page_table:
            self.pool.blocks[block].ref_count += 1

    def free(self, seq: int) -> None:
        self.pool.cancel(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].page_table)

    def free_blocks(self) -> int:
        return len(self.pool.free)

    def refcount(self, block: int) -> int:
        return self.pool.blocks[block].ref_count

    def write(self, block: int, offset: int, x: float) -> None:
        self.pool.blocks[block].data[offset] = x

    def read(self, block: int, offset: int) -> float:
        return float(self.pool.blocks[block].data[offset] or 0)


make = LeulManager

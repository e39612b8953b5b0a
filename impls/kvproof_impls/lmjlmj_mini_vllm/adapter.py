"""lmjlmj1234/mini-vllm-continuous-batching-lab, read from a checkout: its block manager and allocator."""

import types

from kvproof.contract import BadInput, OutOfBlocks, UnknownSequence, require_new, require_tokens
from kvproof_impls.checkout import open_package

open_package("mini_vllm")
from mini_vllm.cache import BlockAllocator, BlockManager  # noqa: E402


class LabManager:
    capabilities = frozenset({"prefix", "blocks"})  # no defer: a block can be found as soon as it is taken
    guard = 64  # Python's hash of the block's own tokens, which are not compared

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockAllocator(num_blocks)
        self.manager, self.live = BlockManager(block_size, self.pool), {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        found = self.manager.probe_prefix_cache(tokens)
        self.live[seq] = types.SimpleNamespace(seq_id=seq, prompt_token_ids=list(tokens), length=0)
        self.manager.allocate_for_seq(self.live[seq])
        try:
            for _ in tokens:
                self.append(seq, [0])
        except OutOfBlocks:
            self.free(seq)
            raise
        return found.cached_token_count

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        try:
            self.manager.ensure_block(self.live[seq], self.live[seq].length)
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from None
        self.live[seq].length += 1

    def commit(self, seq: int, computed: int) -> None:
        pass  # published already

    def free(self, seq: int) -> None:
        self.manager.free(seq)
        self.live.pop(seq, None)

    def table(self, seq: int) -> list[int]:
        if seq not in self.live:
            raise UnknownSequence(f"no sequence {seq}")  # they answer []
        return self.manager.get_block_table(seq)

    def free_blocks(self) -> int:
        return self.pool.num_free_blocks

    def alloc(self) -> int:
        if (blocks := self.pool.allocate(1)) is None:
            raise OutOfBlocks("no free block")
        return blocks[0]

    def retain(self, block: int) -> None:
        try:
            self.pool.increment_ref(block)
        except AssertionError as error:
            raise BadInput(str(error)) from None

    def release(self, block: int) -> None:
        self.pool.free([block])


make = LabManager

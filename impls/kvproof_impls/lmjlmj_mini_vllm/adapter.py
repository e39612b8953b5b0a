"""lmjlmj1234/mini-vllm-continuous-batching-lab, read from a checkout: its block manager and allocator."""

import types
from typing import Any

from kvproof.contract import BadInput, OutOfBlocks, require_sizes
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import open_package

open_package("mini_vllm")
from mini_vllm.cache import BlockAllocator, BlockManager  # noqa: E402


class LabManager(ByToken):
    capabilities = frozenset({"prefix", "blocks"})  # no defer: a block can be found as soon as it is taken
    guard = 64  # Python's hash of the block's own tokens, which are not compared
    full = RuntimeError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool = BlockAllocator(num_blocks)
        self.manager, self.live = BlockManager(block_size, self.pool), {}

    def add(self, seq: int, tokens: list[int]) -> int:
        super().add(seq, tokens)
        return self.live[seq].found.cached_token_count

    def start(self, seq: int, tokens: list[int]) -> Any:
        request = types.SimpleNamespace(seq_id=seq, prompt_token_ids=list(tokens), length=0)
        request.found = self.manager.probe_prefix_cache(tokens)
        self.manager.allocate_for_seq(request)
        return request

    def grow(self, request: Any, token: int) -> None:
        self.manager.ensure_block(request, request.length)
        request.length += 1

    def free(self, seq: int) -> None:
        self.manager.free(seq)
        self.live.pop(seq, None)

    def table(self, seq: int) -> list[int]:
        return self.manager.get_block_table(self.live[seq].seq_id)  # which answers [] for an unknown one

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

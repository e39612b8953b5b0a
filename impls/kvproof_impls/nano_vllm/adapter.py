"""Block manager and scheduler of GeeeekExplorer/nano-vllm, read from a checkout."""

import os
import sys
import types

from kvproof.contract import OutOfBlocks, Refused, require_new, require_tokens

package = sys.modules["nanovllm"] = types.ModuleType("nanovllm")  # its own __init__ imports CUDA code
package.__path__ = [os.environ["KVPROOF_CHECKOUT"] + "/nanovllm"]
config = sys.modules["nanovllm.config"] = types.ModuleType("nanovllm.config")  # its own loads a model
config.Config = types.SimpleNamespace
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402

from kvproof_impls.nano_vllm.scheduler import NanoScheduler  # noqa: E402


class NanoVllm:
    capabilities = frozenset({"prefix", "defer"})
    guard = "tokens"

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size < 2:
            raise Refused(f"block size {block_size} is not served: they take a block when len % size == 1")
        Sequence.block_size = block_size  # theirs is one for the whole process
        self.manager = BlockManager(num_blocks, block_size)
        self.live: dict[int, Sequence] = {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = Sequence(tokens)
        cached = self.manager.can_allocate(request)
        if cached < 0:
            raise OutOfBlocks(f"no room for {request.num_blocks} blocks")
        self.manager.allocate(request, cached)
        self.live[seq] = request
        return request.num_cached_tokens

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        full = len(self.live[seq]) % self.manager.block_size == 0
        if full and not self.manager.free_block_ids:  # their can_append looks when the token is in already
            raise OutOfBlocks("no free block")
        self.live[seq].append_token(tokens[0])
        self.manager.may_append(self.live[seq])

    def commit(self, seq: int, computed: int) -> None:
        request = self.live[seq]
        request.num_scheduled_tokens = computed - request.num_cached_tokens
        self.manager.hash_blocks(request)
        request.num_cached_tokens = computed

    def free(self, seq: int) -> None:
        self.manager.deallocate(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return len(self.manager.free_block_ids)


make = NanoVllm
make_scheduler = NanoScheduler

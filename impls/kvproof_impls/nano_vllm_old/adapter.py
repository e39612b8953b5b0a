"""KKKZOZ/nano-vllm: a block manager whose `allocate` finds and publishes before anything is computed, and
a scheduler that computes every prompt in one step."""

import os
import sys
import types

from kvproof.contract import BadInput, OutOfBlocks, require_new, require_tokens

package = sys.modules["nanovllm"] = types.ModuleType("nanovllm")  # its own __init__ imports CUDA code
package.__path__ = [os.environ["KVPROOF_CHECKOUT"] + "/nanovllm"]
config = sys.modules["nanovllm.config"] = types.ModuleType("nanovllm.config")  # its own loads a model
config.Config = config.get_config = lambda: config
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402

from kvproof_impls.nano_vllm.scheduler import NanoScheduler  # noqa: E402


class OldNanoVllm:
    capabilities = frozenset({"prefix"})  # no defer: its scheduler computes a prompt in one step
    guard = "tokens"

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size < 1:
            raise BadInput(f"block size {block_size}: needs 1 or more")
        config.block_size = block_size  # theirs is one for the whole process
        self.manager = BlockManager(num_blocks, block_size)
        self.live: dict[int, Sequence] = {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = Sequence(tokens)
        if not self.manager.can_allocate(request):
            raise OutOfBlocks(f"no room for {request.num_blocks} blocks")
        self.manager.allocate(request)
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
        pass  # published already

    def free(self, seq: int) -> None:
        self.manager.deallocate(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return len(self.manager.free_block_ids)


class OldNanoScheduler(NanoScheduler):
    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        config.block_size = block_size
        super().__init__(num_blocks, block_size, max_seqs, max_tokens)

    def range(self, seq: Sequence) -> tuple[int, int]:
        return seq.num_cached_tokens if self.prefill else len(seq) - 1, len(seq)

    def postprocess(self, sequences: list[Sequence], tokens: list[int]) -> None:
        self.engine.postprocess(sequences, tokens)


make = OldNanoVllm
make_scheduler = OldNanoScheduler

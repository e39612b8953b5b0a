"""tang-jiapeng/nano-vllm-v1: chunks of prompts and decodes in one step, blocks by the chunk."""

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package
from kvproof_impls.nano_vllm_v1.scheduler import NanoV1Scheduler

open_package("nanovllm", "config")
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402
from nanovllm.engine.scheduler import Scheduler  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402


class NanoV1Manager:
    # no defer: `allocate` publishes before a token is computed
    capabilities = frozenset({"prefix"})
    guard = 64  # it compares the block's own tokens; what comes before them is told by a 64-bit hash

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        Sequence.block_size = block_size  # one for the whole process
        self.manager, self.live = BlockManager(num_blocks, block_size), {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = Sequence(tokens)
        _, idle, request.num_new_tokens = self.manager.get_token_layout(request)
        if not self.manager.can_allocate(idle + request.num_new_tokens):
            raise OutOfBlocks(f"no room for {request.num_new_tokens} tokens")
        self.manager.allocate(request)
        self.live[seq] = request
        return request.num_cached_tokens

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        if not self.manager.can_append(self.live[seq], 1):
            raise OutOfBlocks("no free block")
        self.live[seq].append_token(tokens[0])
        self.live[seq].num_new_tokens = 1
        self.manager.may_append(self.live[seq])

    def commit(self, seq: int, computed: int) -> None:
        self.live[seq].num_cached_tokens = computed

    def free(self, seq: int) -> None:
        self.manager.deallocate(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return self.manager.num_free_blocks


class Scheduling(NanoV1Scheduler):
    scheduler, sequence, params = Scheduler, Sequence, SamplingParams


make, make_scheduler = NanoV1Manager, Scheduling

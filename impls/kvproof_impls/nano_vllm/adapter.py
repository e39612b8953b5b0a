"""GeeeekExplorer/nano-vllm, read from a checkout: its block manager and its scheduler."""

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package
from kvproof_impls.nano_vllm.scheduler import NanoScheduler

open_package("nanovllm", "config")
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402
from nanovllm.engine.scheduler import Scheduler  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402


class NanoManager:
    capabilities = frozenset({"prefix", "defer"})
    guard = 64  # it compares the block's own tokens; what comes before them is told by a 64-bit hash

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        Sequence.block_size = block_size  # one for the whole process
        self.manager, self.live = BlockManager(num_blocks, block_size), {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = Sequence(tokens)
        if (cached := self.manager.can_allocate(request)) < 0:
            raise OutOfBlocks(f"no room for {request.num_blocks} blocks")
        self.manager.allocate(request, cached)
        self.live[seq] = request
        return request.num_cached_tokens

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        if not self.manager.can_append(range(len(self.live[seq]) + 1)):  # it asks with the token in
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


class Scheduling(NanoScheduler):
    scheduler, sequence, params = Scheduler, Sequence, SamplingParams


make, make_scheduler = NanoManager, Scheduling

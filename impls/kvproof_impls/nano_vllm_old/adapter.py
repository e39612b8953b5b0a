"""KKKZOZ/nano-vllm, read from a checkout: a block manager of the older API that most forks have."""

from kvproof_impls.checkout import open_package
from kvproof_impls.nano_vllm_old.manager import OldNanoManager
from kvproof_impls.nano_vllm_old.ranks import OldNanoRanks
from kvproof_impls.nano_vllm_old.scheduler import OldNanoScheduler

(config,) = open_package("nanovllm", "config")
config.get_config = lambda: config
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402
from nanovllm.engine.scheduler import Scheduler  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402


def make(num_blocks: int, block_size: int) -> OldNanoManager:
    config.block_size = block_size  # one for the whole process
    return OldNanoManager(BlockManager(num_blocks, block_size), Sequence, BlockManager.may_append)


class Scheduling(OldNanoScheduler):
    scheduler, sequence, params = Scheduler, Sequence, SamplingParams

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        config.block_size = block_size
        super().__init__(num_blocks, block_size, max_seqs, max_tokens)


def make_ranks(pools: tuple[int, ...], block_size: int, network: object) -> OldNanoRanks:
    return OldNanoRanks(make(min(pools), block_size), len(pools))


make_scheduler = Scheduling

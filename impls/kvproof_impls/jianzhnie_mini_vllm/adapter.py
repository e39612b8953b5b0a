"""jianzhnie/mini-vllm, read from a checkout: nano-vllm's older API with a set of free blocks."""

import functools
import logging

from kvproof_impls.checkout import open_package
from kvproof_impls.nano_vllm_old.manager import OldNanoManager
from kvproof_impls.nano_vllm_old.ranks import OldNanoRanks
from kvproof_impls.nano_vllm_old.scheduler import OldNanoScheduler

_, logger_utils = open_package("minivllm", "config", "utils.logger_utils")
open_package("minivllm.engine")
logger_utils.get_logger = logging.getLogger
from minivllm.engine.block_manager import BlockManager, Sequence  # noqa: E402
from minivllm.engine.scheduler import Scheduler  # noqa: E402
from minivllm.sampling_params import SamplingParams  # noqa: E402


class Manager(OldNanoManager):
    def free_blocks(self) -> int:
        return self.manager.get_num_free_blocks()  # their queue holds stale ids


def make(num_blocks: int, block_size: int) -> Manager:
    sequence = functools.partial(Sequence, block_size=block_size)
    return Manager(BlockManager(num_blocks, block_size), sequence, BlockManager.may_append)


class Scheduling(OldNanoScheduler):
    scheduler, params = Scheduler, SamplingParams

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        self.sequence = functools.partial(Sequence, block_size=block_size)
        super().__init__(num_blocks, block_size, max_seqs, max_tokens)

    def free_blocks(self) -> int:
        return self.engine.block_manager.get_num_free_blocks()


def make_ranks(pools: tuple[int, ...], block_size: int, network: object) -> OldNanoRanks:
    return OldNanoRanks(make(min(pools), block_size), len(pools))


make_scheduler = Scheduling

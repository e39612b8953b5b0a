"""Wenyueh/MinivLLM, read from a checkout: nano-vllm's older API, written anew."""

from typing import Any

from kvproof_impls.checkout import open_package
from kvproof_impls.nano_vllm_old.manager import OldNanoManager
from kvproof_impls.nano_vllm_old.scheduler import OldNanoScheduler

open_package("myvllm", under="src")
from myvllm.engine.block_manager import BlockManager, Sequence  # noqa: E402
from myvllm.engine.scheduler import Scheduler  # noqa: E402
from myvllm.sampling_parameters import SamplingParams  # noqa: E402


def make(num_blocks: int, block_size: int) -> OldNanoManager:
    Sequence.block_size = block_size  # one for the whole process
    return OldNanoManager(BlockManager(num_blocks, block_size), Sequence, BlockManager.append)


class Scheduling(OldNanoScheduler):
    sequence, params = Sequence, SamplingParams

    def scheduler(self, config: Any) -> Scheduler:
        limits = config.max_num_seqs, config.max_num_batched_tokens, config.num_kvcache_blocks
        engine = Scheduler(*limits, config.block_size, config.eos)
        engine.add = engine.add_sequence
        return engine


make_scheduler = Scheduling

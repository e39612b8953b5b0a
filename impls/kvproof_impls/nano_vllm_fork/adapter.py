"""The package nano-vllm-fork: nano-vllm's older API, whose blocks are forgotten when they are freed."""

import importlib.util
import sys
from types import ModuleType

from kvproof_impls.checkout import Stub
from kvproof_impls.nano_vllm_old.manager import OldNanoManager
from kvproof_impls.nano_vllm_old.scheduler import OldNanoScheduler

found = importlib.util.find_spec("nanovllm")
package = sys.modules["nanovllm"] = ModuleType("nanovllm")  # its __init__ wants transformers and a GPU
package.__path__ = list(found.submodule_search_locations or ()) if found else []
sys.modules["nanovllm.config"] = Stub("nanovllm.config")
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402
from nanovllm.engine.scheduler import Scheduler  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402


class Manager(OldNanoManager):
    capabilities = OldNanoManager.capabilities | {"defer"}  # the prompts of one step are all allocated first


def make(num_blocks: int, block_size: int) -> Manager:
    Sequence.block_size = block_size  # one for the whole process
    return Manager(BlockManager(num_blocks, block_size), Sequence, BlockManager.may_append)


class Scheduling(OldNanoScheduler):
    scheduler, sequence, params = Scheduler, Sequence, SamplingParams


make_scheduler = Scheduling

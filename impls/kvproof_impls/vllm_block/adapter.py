"""vLLM V0, its last block manager with fork and copy-on-write, from the package vllm-block.

That is a copy of vLLM 0.8 under another name whose modules import each other as `vllm`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from kvproof.contract import BadInput, OutOfBlocks, Refused, require_new, require_tokens

if "vllm" not in sys.modules:
    sys.modules["vllm"] = package = ModuleType("vllm")
    package.__path__ = list(importlib.util.find_spec("vllm_block").submodule_search_locations)
from vllm.core.block_manager import SelfAttnBlockSpaceManager
from vllm.core.interfaces import AllocStatus
from vllm.inputs import token_inputs
from vllm.sampling_params import SamplingParams
from vllm.sequence import Logprob, Sequence, SequenceGroup, SequenceStatus

PARAMS = SamplingParams(max_tokens=1 << 30)


class Manager:
    capabilities = frozenset({"prefix", "fork", "copies", "probe"})
    guard = 64  # hash() of a tuple
    policy = {"evict": "lru-tail"}  # noqa: RUF012  last accessed, deeper ones first
    caching = True

    def __init__(self, num_blocks, block_size):
        if num_blocks < 1 or block_size < 1:
            raise BadInput("num_blocks and block_size: need 1 or more")
        self.manager = SelfAttnBlockSpaceManager(
            block_size, num_blocks, 0, watermark=0.0, enable_caching=self.caching
        )
        self.size, self.live, self.copied, self.serial = block_size, {}, [], 0

    def group(self, tokens):
        self.serial += 1
        sequence = Sequence(self.serial, token_inputs(list(tokens)), self.size)
        return SequenceGroup(str(self.serial), [sequence], arrival_time=0.0, sampling_params=PARAMS)

    def can_add(self, seq, tokens):
        return self.manager.can_allocate(self.group(tokens)) == AllocStatus.OK

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        group = self.group(tokens)
        (sequence,) = group.seqs
        found = self.manager.get_num_cached_tokens(sequence) if self.caching else 0
        status = self.manager.can_allocate(group)
        if status != AllocStatus.OK:
            error = Refused if status == AllocStatus.NEVER else OutOfBlocks
            raise error(f"can_allocate says {status.name}")
        self.manager.allocate(group)
        sequence.status = SequenceStatus.RUNNING
        self.live[seq] = group, sequence
        return found

    def can_append(self, seq, n=1):
        return self.manager.can_append_slots(self.live[seq][0], 0)

    def append(self, seq, tokens):
        require_tokens(tokens)
        group, sequence = self.live[seq]
        if not self.manager.can_append_slots(group, 0):
            raise OutOfBlocks("can_append_slots says no")
        sequence.append_token_id(tokens[0], {tokens[0]: Logprob(0.0)})
        self.copied += self.manager.append_slots(sequence, 0)

    def commit(self, seq, computed):
        group, sequence = self.live[seq]
        sequence.data.update_num_computed_tokens(computed - sequence.data.get_num_computed_tokens())
        if self.caching:
            self.manager.mark_blocks_as_computed(group, computed)

    def free(self, seq):
        self.manager.free(self.live.pop(seq)[1])

    def table(self, seq):
        return list(self.manager.get_block_table(self.live[seq][1]))

    def free_blocks(self):
        return self.manager.get_num_free_gpu_blocks()

    def fork(self, parent, child):
        _, sequence = self.live[parent]
        require_new(child, self.live)
        self.serial += 1
        forked = sequence.fork(self.serial)
        self.manager.fork(sequence, forked)
        one = SequenceGroup(str(self.serial), [forked], arrival_time=0.0, sampling_params=PARAMS)
        self.live[child] = one, forked

    def copies(self):
        copied, self.copied = self.copied, []
        return copied


class Uncached(Manager):
    capabilities = Manager.capabilities - {"prefix"}
    caching = False


make = Manager
make_uncached = Uncached

"""LMDeploy, PyTorch engine: block manager, prefix trie and eviction. The scheduler is in scheduler.py."""

from __future__ import annotations

from collections import Counter

import numpy as np
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import SamplingParam, SequenceMeta, UpdateTokenMode
from lmdeploy.pytorch.paging.scheduler import Scheduler
from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

from kvproof.contract import BadInput, OutOfBlocks, require_new, require_tokens

DECODE = UpdateTokenMode.DECODE
LONG = 1 << 30
PARAMS = SamplingParam(max_new_tokens=LONG)


def engine(num_blocks: int, block_size: int, caching: bool, max_seqs: int = LONG, max_tokens: int = LONG):
    if num_blocks < 1 or block_size < 1:
        raise BadInput(f"{num_blocks} blocks of {block_size}: needs 1 or more")
    cache = CacheConfig(
        max_batches=max_seqs,
        block_size=block_size,
        num_cpu_blocks=0,
        num_gpu_blocks=num_blocks,
        max_prefill_token_num=max_tokens,
        enable_prefix_caching=caching,
    )
    settings = SchedulerConfig(max_batches=max_seqs, max_session_len=LONG, max_request_output_len=LONG)
    return Scheduler(settings, cache, seq_meta=SequenceMeta(block_size, strategy=ARSequenceStrategy()))


def free_blocks(engine, raw=()) -> int:
    """Free ones, and those that only its trie holds: their one owner is no request and not `raw`."""
    alone = engine.block_manager.allocator._log_mem.ref_count == 1
    for session in engine.sessions.values():
        for request in session.sequences.values():
            alone[request.logical_blocks.get_real_blocks()] = False
    alone[list(raw)] = False
    return engine.block_manager.get_num_free_gpu_blocks() + int(np.count_nonzero(alone))


class Manager:
    """Publishes a block when it is allocated: so a commit comes at once, no `defer`."""

    capabilities = frozenset({"prefix", "multi", "blocks"})
    guard = "tokens"  # a tree of blocks, whose tokens are compared
    policy = {"evict": "lru-tail"}  # noqa: RUF012  leaves first, by time of access
    caching = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.engine, self.block_size = engine(num_blocks, block_size, self.caching), block_size
        self.blocks, self.trie = self.engine.block_manager, self.engine.block_trie
        self.live, self.raw, self.serial = {}, {}, 0
        self.held = Counter()  # references to raw blocks, by their names

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        self.serial += 1
        request = self.engine.add_session(self.serial).add_sequence(
            tokens, SamplingParam(max_new_tokens=LONG)
        )
        self.trie.match(request)
        if not self.engine.eviction_helper.try_make_capacity_for(request, (), 0):
            self.engine.end_session(self.serial)
            raise OutOfBlocks(f"no room for {len(tokens)} tokens")
        self.blocks.allocate(request)
        self.live[seq] = request
        return request.num_history_ids

    def append(self, seq, tokens):
        require_tokens(tokens)
        request = self.live[seq]
        if self.blocks.num_required_blocks(request, len(tokens)):
            if not self.engine.eviction_helper.try_make_capacity_for(request, (), len(tokens)):
                raise OutOfBlocks(f"no room for {len(tokens)} more")
            self.blocks.allocate(request, len(tokens))
        request.update_token_ids(np.array(tokens), mode=DECODE)

    def commit(self, seq, computed):
        request = self.live[seq]
        if request.num_new_tokens == 0 or computed % self.block_size < request.num_token_ids:
            self.trie.allocate(request)

    def free(self, seq):
        self.engine.end_session(self.live.pop(seq).session_id)

    def table(self, seq):
        return self.blocks.get_block_table(self.live[seq]).tolist()

    def free_blocks(self):
        return free_blocks(self.engine, [self.raw[b] for b, count in self.held.items() if count > 0])

    def alloc(self):
        try:
            block = self.blocks.allocator.allocate(1)
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        (name,) = self.blocks.allocator.get_physical_blocks(block).tolist()
        self.raw[name], self.held[name] = block[0], 1  # its references are by logical ids
        return name

    def retain(self, block):
        self.blocks.allocator.add_ref_count(np.array([self.raw[block]]), 1)
        self.held[block] += 1

    def release(self, block):
        self.release_many([block])

    def release_many(self, blocks):
        self.blocks.allocator.free(np.array([self.raw[b] for b in blocks]))
        self.held.subtract(blocks)


class Uncached(Manager):
    capabilities = Manager.capabilities - {"prefix"}
    caching = False


make = Manager
make_uncached = Uncached

from kvproof_impls.lmdeploy.scheduler import make_scheduler  # noqa: E402, F401

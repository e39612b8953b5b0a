"""ModelTC/lightllm, read from a checkout: memory manager and radix cache, which know tokens and no blocks.

So a block is one token here. The memory manager is made without its __init__, which allocates on a GPU, and
the counters that its processes share are plain ones.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import torch

from kvproof.contract import OutOfBlocks, Refused, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package


class SharedInt:
    def __init__(self, name):
        self.value = 0

    def set_value(self, value):
        self.value = value

    def get_value(self):
        return self.value


class SharedArray:
    def __init__(self, name, shape, dtype):
        self.arr = np.zeros(shape, dtype)


UTILS = tuple(f"utils.{name}" for name in ("log_utils", "profile_max_tokens", "dist_utils", "envs_utils"))
log, *_ = open_package("lightllm", *UTILS, "server.pd_io_struct", "distributed", "distributed.pynccl")
log.init_logger = logging.getLogger
for folder in ("common", "server", "server.router", "utils"):
    open_package(f"lightllm.{folder}")
open_package("lightllm.common.kv_trans_kernel", "kv_trans")
(shared,) = open_package("lightllm.server.router.dynamic_prompt", "shared_arr")
shared.SharedInt, shared.SharedArray = SharedInt, SharedArray
from lightllm.common.mem_manager import MemoryManager  # noqa: E402
from lightllm.server.router.dynamic_prompt.radix_cache import RadixCache  # noqa: E402


class Manager:
    capabilities = frozenset({"prefix", "blocks"})
    guard = "tokens"
    publish = "free"
    policy = {"evict": "other"}  # noqa: RUF012

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        if block_size != 1:
            raise Refused(f"block size {block_size} is not served: it has tokens, no blocks")
        m = self.memory = MemoryManager.__new__(MemoryManager)
        m.size = m.can_use_mem_size = m.mark_end = num_blocks
        m.mark_start, m.mem_state = 0, torch.arange(num_blocks, dtype=torch.int32)
        m.shared_can_use_token_num = SharedInt("free")
        m.shared_can_use_token_num.set_value(num_blocks)
        self.tree, self.live, self.taken = RadixCache("kvproof", num_blocks, 0, m), {}, {}

    def take(self, count):
        """As its infer_state does: evict what is missing, after the check of its router."""
        if count > self.free_blocks():
            raise OutOfBlocks(f"no room for {count} tokens")
        self.tree.free_radix_cache_to_get_enough_token(count)
        return self.memory.alloc(count).tolist()

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        node, found, values = None, 0, None
        if len(tokens) > 1:
            node, found, values = self.tree.match_prefix(torch.tensor(tokens[:-1]), update_refs=True)
        try:
            fresh = self.take(len(tokens) - found)
        except OutOfBlocks:
            self.tree.dec_node_ref_counter(node)
            raise
        before = values.tolist() if found else []
        self.live[seq] = SimpleNamespace(
            tokens=list(tokens), slots=before + fresh, node=node, found=found, done=found
        )
        return found

    def append(self, seq, tokens):
        require_tokens(tokens)
        r = self.live[seq]
        r.slots += self.take(1)
        r.tokens += tokens

    def commit(self, seq, computed):
        self.live[seq].done = computed

    def free(self, seq):
        """Its free_a_req_mem: insert what is computed, give back what the tree had already."""
        r = self.live.pop(seq)
        slots = torch.tensor(r.slots)
        same = self.tree.insert(torch.tensor(r.tokens[: r.done]), slots[: r.done])
        self.memory.free(torch.cat([slots[r.found : same], slots[r.done :]]))
        self.tree.dec_node_ref_counter(r.node)

    def table(self, seq):
        return list(self.live[seq].slots)

    def free_blocks(self):
        held = self.tree.get_tree_total_tokens_num() - self.tree.get_refed_tokens_num()
        return int(self.memory.can_use_mem_size + held)

    def alloc(self):
        return self.take(1)[0]

    def retain(self, block):  # its tokens have no counts: this one is the adapter's
        self.taken[block] = self.taken.get(block, 0) + 1

    def release(self, block):
        if self.taken.get(block, 0):
            self.taken[block] -= 1
        else:
            self.memory.free(torch.tensor([block]))


make = Manager

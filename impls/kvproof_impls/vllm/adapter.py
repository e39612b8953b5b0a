"""vLLM V1: KVCacheManager with prefix caching, its BlockPool, and the worker's block table.

The scheduler is in scheduler.py. No model, no engine, no compiled kernel is opened.
"""

from __future__ import annotations

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")

import numpy as np
import torch
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils as hashing
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request
from vllm.v1.worker.block_table import BlockTable

from kvproof.contract import BadInput, OutOfBlocks, require_new, require_tokens

PARAMS = SamplingParams(max_tokens=1 << 30, ignore_eos=True)
HASH = get_hash_fn_by_name("sha256")  # its default
hashing.init_none_hash(HASH)


def config(num_blocks: int, block_size: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )


class VLLMManager:
    """Publishes a block when its slots are allocated: so a commit comes at once, no `defer`."""

    capabilities = frozenset({"prefix", "keys", "multi", "refcount", "reset", "blocks", "batch"})
    guard = 256
    policy = {"evict": "lru-tail"}  # noqa: RUF012
    reserved = (0,)  # the null block
    pad = 0
    caching = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise BadInput(f"{num_blocks} blocks of {block_size}: needs 2 or more, one is the null block")
        self.manager = KVCacheManager(
            config(num_blocks, block_size),
            max_model_len=1 << 30,
            scheduler_block_size=block_size,
            hash_block_size=block_size,
            enable_caching=self.caching,
        )
        self.pool, self.block_size, self.live, self.serial = self.manager.block_pool, block_size, {}, 0
        self.hasher = hashing.get_request_block_hasher(block_size, HASH) if self.caching else None
        self.rows, self.batched, self.new = self.table_of_worker(8, 64), [-1], {}

    def add(self, seq, tokens, keys=None):
        require_new(seq, self.live)
        require_tokens(tokens)
        request = self.request(tokens, keys or {})
        blocks, cached, _ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - cached, cached, blocks) is None:
            raise OutOfBlocks(f"allocate_slots gives no slots for {len(tokens)} tokens")
        self.live[seq] = request
        return cached

    def request(self, tokens, keys):
        self.serial += 1
        adapter = keys.get("adapter")
        return Request(
            str(self.serial),
            list(tokens),
            PARAMS,
            None,
            cache_salt=keys.get("salt"),
            lora_request=None if adapter is None else LoRARequest(adapter, 1, f"/{adapter}"),
            mm_features=[
                MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset, length))
                for offset, length, name in keys.get("media", ())
            ],
            block_hasher=self.hasher,
        )

    def append(self, seq, tokens):
        require_tokens(tokens)
        request = self.live[seq]
        request.append_output_token_ids(list(tokens))
        blocks = self.manager.allocate_slots(request, len(tokens))
        if blocks is None:
            for known in (request._output_token_ids, request._all_token_ids):
                del known[-len(tokens) :]  # an engine would keep them, and preempt
            del request.block_hashes[request.num_tokens // self.block_size :]
            raise OutOfBlocks(f"allocate_slots gives no slots for {len(tokens)} more")
        if fresh := blocks.get_block_ids()[0]:
            self.new.setdefault(seq, []).extend(fresh)  # what a worker is told

    def commit(self, seq, computed):
        self.live[seq].num_computed_tokens = computed

    def free(self, seq):
        self.manager.free(self.live.pop(seq))
        self.new.pop(seq, None)
        self.batched = [-1]

    def table(self, seq):
        return self.manager.get_block_ids(self.live[seq].request_id)[0]

    def free_blocks(self):
        return self.pool.get_num_free_blocks()

    def reset_prefix_cache(self):
        return self.manager.reset_prefix_cache()

    def refcount(self, block):
        return self.pool.blocks[block].ref_cnt

    def alloc(self):
        try:
            return self.pool.get_new_blocks(1)[0].block_id
        except ValueError as error:
            raise OutOfBlocks(str(error)) from error

    def retain(self, block):
        self.pool.touch([self.pool.blocks[block]])

    def release(self, block):
        self.release_many([block])

    def release_many(self, blocks):
        self.pool.free_blocks([self.pool.blocks[b] for b in blocks])

    def batch(self, seqs):
        """As a worker does: the rows of a batch get what is new, another batch is written whole."""
        new = {s: self.new.pop(s, []) for s in dict.fromkeys(seqs)}
        most = max(map(len, new.values()), default=0)
        if list(seqs) != self.batched or self.counts.max() + most > self.rows.max_num_blocks_per_req:
            self.write_rows(list(seqs))
        else:
            for row, seq in enumerate(seqs):
                self.rows.append_row(new[seq], row)
        self.rows.commit_block_table(len(seqs))
        lengths = np.array([self.live[s].num_tokens for s in seqs], dtype=np.int32)
        width = self.counts.max(initial=0)
        return self.rows.get_device_tensor(len(seqs))[:, :width], self.counts.copy(), lengths

    def write_rows(self, seqs):
        tables = [self.table(s) for s in seqs]
        width = 2 * max(map(len, tables), default=0) + 8
        if self.rows.max_num_reqs < len(seqs) or self.rows.max_num_blocks_per_req < width:
            self.rows = self.table_of_worker(2 * len(seqs), 2 * width)
        for row, table in enumerate(tables):
            self.rows.clear_row(row)
            self.rows.add_row(table, row)
        self.batched, self.counts = seqs, self.rows.num_blocks_per_row[: len(seqs)]

    def table_of_worker(self, rows, width):
        return BlockTable(self.block_size, rows, width, 1, False, torch.device("cpu"), 1)


class Uncached(VLLMManager):
    capabilities = VLLMManager.capabilities - {"prefix", "keys", "reset"}
    caching = False


make = VLLMManager
make_uncached = Uncached

from kvproof_impls.vllm.scheduler import make_scheduler  # noqa: E402, F401

"""Hugging Face transformers, continuous batching: PagedAttentionCache with block sharing.

The scheduler is in scheduler.py.
"""

from __future__ import annotations

import types

from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache, PagedAttentionMemoryHandler
from transformers.generation.continuous_batching.requests import RequestState

from kvproof.contract import BadInput, OutOfBlocks, require_new, require_tokens

# It charges activations and masks of a model too; here the number of blocks is given.
PagedAttentionMemoryHandler._check_footprint = lambda self, tokens, sectors: (tokens, sectors)
MODEL = LlamaConfig(
    hidden_size=32, num_attention_heads=1, num_key_value_heads=1, head_dim=32, num_hidden_layers=1
)  # with 32 dimensions a sector is one block, whatever its size
MODEL._attn_implementation = "sdpa"
ALONE = types.SimpleNamespace(tp_size=1, tp_all_reduce_min=lambda value, on_cpu=False: value)


def cache(
    num_blocks: int, block_size: int, sharing: bool = True, max_tokens: int = 4096
) -> PagedAttentionCache:
    if num_blocks < 1 or block_size < 1:
        raise BadInput(f"{num_blocks} blocks of {block_size}: needs 1 or more")
    settings = ContinuousBatchingConfig(
        page_size=block_size, num_blocks=num_blocks, max_batch_tokens=max_tokens, allow_block_sharing=sharing
    )
    settings.max_memory_percent, settings.max_blocks_per_request = 0.5, 0
    return PagedAttentionCache(MODEL, settings, "cpu", ALONE)


def free_blocks(cache: PagedAttentionCache) -> int:
    (allocator,) = cache.cache_allocators.values()
    return (
        cache.pool.count_free_blocks(0)
        + cache.pool.num_free_sectors * allocator.blocks_per_sector
        + len(allocator.ledger.cached_blocks)
    )


class Manager:
    capabilities = frozenset({"prefix", "defer", "multi", "fork", "copies", "blocks"})
    guard = 64  # a chained hash of 8 bytes, tokens are not compared
    policy = {"evict": "other"}  # noqa: RUF012  all cached blocks at once
    sharing = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = cache(num_blocks, block_size, self.sharing)
        (self.allocator,) = self.cache.cache_allocators.values()
        self.pool, self.live, self.copied, self.serial = self.cache.pool, {}, [], 0

    def name(self) -> str:
        self.serial += 1
        return str(self.serial)

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        state = RequestState(self.name(), list(tokens), max_new_tokens=None)
        state.position_offset = cached = self.cache.search_prefix_match(
            state.request_id, state.initial_tokens
        )
        if not self.stored(state, len(tokens) - cached):
            self.cache.free_blocks(state.request_id)  # its scheduler would keep the matched ones, and wait
            raise OutOfBlocks(f"no room for {len(tokens)} tokens")
        self.live[seq] = state
        return cached

    def stored(self, state, count):
        """As its engine does: what no longer fits evicts every cached block, if that is enough."""
        if not self.cache.can_store_request_tokens(state, count):
            need = self.allocator.needs_new_blocks(state.request_id, state.current_len(), count)
            if need > free_blocks(self.cache):
                return False
            self.cache.evict_cached_blocks()
        return self.cache.can_store_request_tokens(state, count)

    def append(self, seq, tokens):
        require_tokens(tokens)
        state = self.live[seq]
        known = len(state.initial_tokens) + len(state.generated_tokens)
        if not self.stored(state, known + len(tokens) - state.position_offset):
            raise OutOfBlocks(f"no room for {len(tokens)} more")
        state.generated_tokens += tokens

    def commit(self, seq, computed):
        state = self.live[seq]
        done = self.cache.count_new_complete_blocks(state, computed - state.position_offset)
        state.position_offset = computed
        self.cache.mark_complete_blocks(state, done)

    def free(self, seq):
        self.cache.free_blocks(self.live.pop(seq).request_id)

    def table(self, seq):
        return list(self.allocator.block_table[self.live[seq].request_id])

    def free_blocks(self):
        return free_blocks(self.cache)

    def fork(self, parent, child):
        state = self.live[parent]
        require_new(child, self.live)
        name, pairs = self.name(), {"full_attention": ([], [])}
        if not self.cache.prepare_fork_request(state, [name], pairs):
            self.cache.evict_cached_blocks()
            if not self.cache.prepare_fork_request(state, [name], pairs):
                raise OutOfBlocks("no room for the copy of the last block")
        self.copied += zip(*pairs["full_attention"], strict=True)
        self.live[child] = state.fork(name)

    def copies(self):
        copied, self.copied = self.copied, []
        return copied

    def alloc(self):
        if not self.pool.count_free_blocks(0):
            if not self.pool.num_free_sectors:
                raise OutOfBlocks("no sector is free")
            self.pool.allocate_sector(0)
        return self.pool.get_free_blocks(0, 1)[0]

    def retain(self, block):
        self.allocator.ledger.acquire(block)

    def release(self, block):
        self.release_many([block])

    def release_many(self, blocks):
        self.pool.free_blocks(0, [b for b in blocks if self.allocator.ledger.release(b)])


class Uncached(Manager):
    capabilities = Manager.capabilities - {"prefix"}
    sharing = False


make = Manager
make_uncached = Uncached

from kvproof_impls.transformers.scheduler import make_scheduler  # noqa: E402, F401

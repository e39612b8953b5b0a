"""SGLang: paged allocator, table of token slots, and its radix tree (the default one, in Rust).

Its scheduler needs a model worker and is not driven.
"""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import torch

from kvproof.contract import BadInput, BadSlots, OutOfBlocks, Refused, require_new, require_tokens
from kvproof_impls.sglang.opened import (
    CacheInitParams,
    ComponentType,
    EvictParams,
    MatchPrefixParams,
    PagedTokenToKVPoolAllocator,
    RadixKey,
    ReqKvInfo,
    ReqToTokenPool,
    UnifiedRadixCache,
)


class Request(SimpleNamespace):
    """The fields of a Req that the tree reads."""

    def finished(self):
        return self.done


class SGLangManager:
    capabilities = frozenset({"prefix", "defer", "steps", "batch", "blocks"})
    guard = "tokens"  # a tree of token slices
    publish = "free"  # prompts after they are computed, the rest when a request ends
    policy = {"evict": "other"}  # noqa: RUF012
    reserved = (0,)  # its page for padded tokens
    pad = 0
    caching = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 2 or block_size < 1:
            raise BadInput(f"{num_blocks} blocks of {block_size}: needs 2 or more, one is reserved")
        if block_size == 1:
            raise Refused("block size 1 is not served: SGLang has another allocator for it")
        self.size, slots = block_size, (num_blocks - 1) * block_size
        self.pages = PagedTokenToKVPoolAllocator(slots, block_size, torch.float16, "cpu", None, False)
        self.rows = ReqToTokenPool(16, 64 * block_size, "cpu", False)
        params = CacheInitParams(not self.caching, self.rows, self.pages, block_size)
        params.tree_components = (ComponentType.FULL,)
        self.tree = UnifiedRadixCache(params)
        self.live, self.batched, self.taken = {}, ([], None, None), {}

    def room(self, width: int) -> None:
        """Rows and columns for one more: an engine has them from the start, for its longest context."""
        table = self.rows.req_to_token
        more = 0 if self.rows.free_slots else len(table)
        if more or width > table.shape[1]:
            wider = torch.zeros((len(table) + more, max(2 * width, table.shape[1])), dtype=table.dtype)
            wider[: len(table), : table.shape[1]] = table
            self.rows.req_to_token = wider
            self.rows.free_slots += range(len(table), len(table) + more)
            self.rows.req_generation = torch.zeros(len(wider), dtype=torch.int64)

    def evict(self, tokens: int) -> None:
        """As its evict_from_tree_cache, after the check that its scheduler makes at admission."""
        missing = tokens - self.pages.available_size()
        if missing > self.tree.evictable_size():
            raise OutOfBlocks(f"no room for {tokens} slots")
        if missing > 0:
            self.tree.evict(EvictParams(num_tokens=missing))

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        self.room(len(tokens) + self.size)
        r = Request(
            origin_input_ids=array("q", tokens), output_ids=array("q"), kv=ReqKvInfo(), done=False, priority=0
        )
        r.extra_key = r.cache_salt = r.session = r.session_id = r.kv_rotation_base = None
        r.rid, end = str(seq), len(tokens)
        hit = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(r.origin_input_ids, limit=end - 1)))
        found, r.last_node = hit.device_prefix_len, hit.last_device_node
        r.lock = self.tree.lock(r.last_node) if self.caching else None
        before = self.tree.path_device_indices(r.last_node) if found else None
        try:
            self.evict((-(-end // self.size) - found // self.size) * self.size)
        except OutOfBlocks:
            self.tree.unlock(r.lock)
            raise
        (r.kv.req_pool_idx,) = self.rows.alloc_rows(1)
        low, high = torch.tensor([found]), torch.tensor([end])
        last = before[-1:] if found else torch.tensor([-1])
        slots = self.pages.alloc_extend(low, low, high, high, last, end - found)
        if found:
            self.rows.write((r.kv.req_pool_idx, slice(0, found)), before.to(torch.int32))
        self.rows.write((r.kv.req_pool_idx, slice(found, end)), slots.to(torch.int32))
        r.kv.kv_allocated_len, r.kv.kv_committed_len, r.kv.cache_protected_len = end, found, found
        self.live[seq] = r
        return found

    def append(self, seq, tokens):
        require_tokens(tokens)
        self.append_batch([seq], tokens)

    def append_batch(self, seqs, tokens):
        """What its prepare_for_decode does: one call for the batch, whose index tensors live on."""
        seqs = list(seqs)
        if seqs != self.batched[0]:
            if len(set(seqs)) != len(seqs) or len(seqs) != len(tokens):
                raise BadInput("a sequence is listed twice, or there is not one token for each")
            index = torch.tensor([self.live[s].kv.req_pool_idx for s in seqs])
            lengths = torch.tensor([self.live[s].kv.kv_allocated_len for s in seqs])
            self.batched = (seqs, index, lengths)
        seqs, index, lengths = self.batched
        self.evict(int((lengths % self.size == 0).sum()) * self.size)
        self.room(int(lengths.max()) + 1)
        last = self.rows.req_to_token[index, lengths - 1]
        slots = self.pages.alloc_decode(lengths + 1, lengths + 1, last)
        self.rows.write((index, lengths), slots.to(torch.int32))
        self.batched = (seqs, index, lengths + 1)
        for seq, token in zip(seqs, tokens, strict=True):
            r = self.live[seq]
            r.kv.kv_allocated_len += 1
            r.output_ids.append(token)
        return slots.tolist()

    def commit(self, seq, computed):
        r = self.live[seq]
        r.kv.kv_committed_len = computed
        if self.caching and computed <= len(r.origin_input_ids):  # after each chunk of a prompt
            r.full_untruncated_fill_ids = r.origin_input_ids
            self.tree.checkpoint(r, up_to=computed)

    def commit_batch(self, seqs):
        for seq in seqs:
            self.live[seq].kv.kv_committed_len = self.live[seq].kv.kv_allocated_len

    def free(self, seq):
        """Its release_kv_cache."""
        r, self.batched = self.live.pop(seq), ([], None, None)
        kv, r.done = r.kv, True
        r.full_untruncated_fill_ids = r.origin_input_ids + r.output_ids
        if self.caching:
            self.tree.checkpoint(r, up_to=kv.kv_committed_len)
        slots = self.rows.req_to_token[kv.req_pool_idx, kv.cache_protected_len : kv.kv_allocated_len]
        self.pages.free_segment(slots.to(torch.int64), start_pos=kv.cache_protected_len)
        self.tree.unlock(r.lock)
        self.rows.free_rows([kv.req_pool_idx])

    def table(self, seq):
        kv = self.live[seq].kv
        slots = self.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len]
        pages = slots[:: self.size] // self.size
        whole = (pages[:, None] * self.size + torch.arange(self.size)).reshape(-1)
        if not torch.equal(whole[: len(slots)].to(slots.dtype), slots):
            raise BadSlots(f"the slots of a page are not consecutive: {slots.tolist()}")
        return pages.tolist()

    def batch(self, seqs):
        """The page table as its backends gather it from the table of token slots."""
        index = torch.tensor([self.live[s].kv.req_pool_idx for s in seqs], dtype=torch.int64)
        lengths = torch.tensor([self.live[s].kv.kv_allocated_len for s in seqs], dtype=torch.int64)
        columns = torch.arange(0, int(lengths.max()) if len(seqs) else 0, self.size)
        pages = self.rows.req_to_token[index[:, None], columns[None, :]] // self.size
        return pages, (lengths + self.size - 1) // self.size, lengths

    def free_blocks(self):
        return (self.pages.available_size() + self.tree.evictable_size()) // self.size

    def alloc(self):
        slots = self.pages.alloc(self.size)
        if slots is None:
            raise OutOfBlocks("no page is free")
        return int(slots[0]) // self.size

    def retain(self, block):  # its pages have no counts: this one is the adapter's
        if block in self.pages.free_pages:
            raise BadInput(f"page {block} is free")
        self.taken[block] = self.taken.get(block, 0) + 1

    def release(self, block):
        if self.taken.get(block, 0):
            self.taken[block] -= 1
        else:
            self.pages.free(torch.arange(block * self.size, (block + 1) * self.size))


class Uncached(SGLangManager):
    capabilities = SGLangManager.capabilities - {"prefix"}
    caching = False


make = SGLangManager
make_uncached = Uncached

"""sgl-project/mini-sglang, read from a checkout: its cache manager and radix cache.

Keys are compared by torch: its own comparison is C++ that it compiles. Memory is not pinned: that needs CUDA.
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType, SimpleNamespace

import torch

from kvproof.contract import BadInput, OutOfBlocks, Refused, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package

CONTEXT = SimpleNamespace(page_size=1)
ROWS, WIDTH = 256, 1 << 17


def first_difference(a, b):
    length = min(len(a), len(b))
    differ = (a[:length] != b[:length]).nonzero()
    return int(differ[0]) if len(differ) else length


class Registry(dict):
    def __init__(self, name):
        super().__init__()

    def register(self, name):
        return lambda made: self.setdefault(name, made)


kernel, core, utils = open_package("minisgl", "kernel", "core", "utils", under="python")
open_package("minisgl.scheduler", under="python")
kernel.fast_compare_key = first_difference
core.get_global_ctx = lambda: CONTEXT
utils.align_down, utils.div_ceil = lambda x, n: x // n * n, lambda a, b: -(-a // b)
utils.div_even, utils.Registry = lambda a, b, **_: a // b, Registry
import minisgl.scheduler.cache as theirs  # noqa: E402


class Unpinned(ModuleType):
    """torch, whose `empty` forgets that memory should be pinned."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def empty(*shape, pin_memory=False, **options):
        return torch.empty(*shape, **options)


theirs.torch = Unpinned("torch")


class Manager:
    capabilities = frozenset({"prefix", "blocks"})
    guard = "tokens"
    publish = "free"  # prompts after they are computed, the rest when a request ends
    policy = {"evict": "other"}  # noqa: RUF012

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        CONTEXT.page_size = self.size = block_size
        rows = min(num_blocks, ROWS)
        width = min(num_blocks * block_size, WIDTH) + block_size
        pages = torch.zeros((rows, width), dtype=torch.int32)
        self.manager = theirs.CacheManager(num_blocks, block_size, pages, "radix")
        self.rows, self.live, self.taken = list(range(rows)), {}, Counter()

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        if len(tokens) > WIDTH:
            raise Refused(f"{len(tokens)} tokens: a row of the page table has {WIDTH}")
        ids = torch.tensor(tokens, dtype=torch.int32)
        r = SimpleNamespace(input_ids=ids, input_len=len(tokens), device_len=len(tokens), cached_len=0)
        r.cache_handle = self.manager.match_req(r).cuda_handle
        self.manager.lock(r.cache_handle)
        r.cached_len = found = r.cache_handle.cached_len
        pages = -(-len(tokens) // self.size) - found // self.size
        if pages * self.size > self.manager.available_size or not self.rows:  # its PrefillAdder looks
            self.manager.unlock(r.cache_handle)
            raise OutOfBlocks(f"no room for {len(tokens)} tokens")
        r.table_idx = self.rows.pop()
        if found:
            self.manager.page_table[r.table_idx, :found] = r.cache_handle.get_matched_indices()
        self.manager.allocate_paged([r])
        self.live[seq] = r
        return found

    def append(self, seq, tokens):
        require_tokens(tokens)
        r = self.live[seq]
        if r.device_len % self.size == 0 and self.manager.available_size < self.size:
            raise OutOfBlocks("no page is free")
        r.device_len += 1
        self.manager.allocate_paged([r])
        r.input_ids = torch.cat([r.input_ids, torch.tensor(tokens, dtype=torch.int32)])

    def commit(self, seq, computed):
        r = self.live[seq]
        r.cached_len = computed
        if r.device_len == r.input_len:
            self.manager.cache_req(r, finished=False)

    def free(self, seq):
        r = self.live.pop(seq)
        self.manager.cache_req(r, finished=True)
        first = -(-r.cached_len // self.size) * self.size  # its engine ends nothing before it is computed
        self.manager._free(self.manager.page_table[r.table_idx, first : r.device_len])
        self.rows.append(r.table_idx)

    def table(self, seq):
        r = self.live[seq]
        return (self.manager.page_table[r.table_idx, : r.device_len : self.size] // self.size).tolist()

    def free_blocks(self):
        return self.manager.available_size // self.size

    def alloc(self):
        if self.manager.available_size < self.size:
            raise OutOfBlocks("no page is free")
        return int(self.manager._allocate(1)[0]) // self.size

    def retain(self, block):  # its pages have no counts: this one is the adapter's
        if block * self.size in self.manager.free_slots:
            raise BadInput(f"page {block} is free")
        self.taken[block] += 1

    def release(self, block):
        if self.taken[block]:
            self.taken[block] -= 1
        else:
            self.manager._free(torch.arange(block * self.size, (block + 1) * self.size, dtype=torch.int32))


make = Manager

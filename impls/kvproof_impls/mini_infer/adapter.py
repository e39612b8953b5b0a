"""mini-infer: block pool with reference counts, and its prefix cache, called as by its engine."""

from __future__ import annotations

import torch
from mini_infer.cache.block_pool import BlockPool, BlockTable
from mini_infer.cache.prefix_cache import PrefixCache

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens


class Manager:
    capabilities = frozenset({"prefix", "blocks"})
    guard = "tokens"  # keys are all tokens of a prefix
    policy = {"evict": "other"}  # noqa: RUF012  its engine never evicts
    caching = True

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        self.pool = BlockPool(num_blocks, block_size, 1, 1, 1, torch.device("cpu"), torch.float16)
        self.cache, self.size, self.live = PrefixCache(block_size), block_size, {}

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        table, found = BlockTable(self.size), ([], 0)
        if self.caching:
            found = self.cache.match_prefix(tokens, self.pool)
        table.physical_block_ids, table.num_tokens = found
        try:
            table.physical_block_ids += self.pool.allocate_blocks(
                -(-len(tokens) // self.size) - len(found[0])
            )
        except MemoryError as error:
            table.free(self.pool)
            raise OutOfBlocks(str(error)) from error
        table.num_tokens, table.prompt = len(tokens), tuple(tokens)
        self.live[seq] = table
        return found[1]

    def append(self, seq, tokens):
        require_tokens(tokens)
        try:
            self.live[seq].append_slot(self.pool)
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error

    def commit(self, seq, computed):
        table = self.live[seq]
        if self.caching and table.num_tokens == len(table.prompt):  # blocks of prompts only
            for block in range(computed // self.size):
                prefix = table.prompt[: (block + 1) * self.size]
                self.cache.insert_prefix_block(prefix, table.physical_block_ids[block], self.pool)

    def free(self, seq):
        self.live.pop(seq).free(self.pool)

    def table(self, seq):
        return list(self.live[seq].physical_block_ids)

    def free_blocks(self):
        return self.pool.num_free

    def alloc(self):
        try:
            return self.pool.allocate_block()
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error

    def retain(self, block):
        self.pool.retain_block(block)

    def release(self, block):
        self.pool.free_block(block)

    def release_many(self, blocks):
        self.pool.free_blocks(blocks)


class Uncached(Manager):
    capabilities = Manager.capabilities - {"prefix"}
    caching = False


make = Manager
make_uncached = Uncached

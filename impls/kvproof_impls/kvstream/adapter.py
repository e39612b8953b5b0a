"""kvstream: block manager with fork and swap, and its prefix cache, called as by its engine.

Its package imports an HTTP server, so its modules are opened without it.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from kvproof.contract import OutOfBlocks, Refused, require_new, require_sizes, require_tokens

package = importlib.util.find_spec("kvstream")
for name in ("kvstream", "kvstream.memory"):
    module = sys.modules[name] = ModuleType(name)
    inner = name.removeprefix("kvstream").replace(".", "/")
    module.__path__ = [path + inner for path in package.submodule_search_locations]
from kvstream.memory.block_manager import BlockManager  # noqa: E402
from kvstream.memory.prefix_cache import PrefixKVCache  # noqa: E402


class Manager:
    capabilities = frozenset({"prefix", "fork", "swap", "copies"})
    guard = 64  # the first 16 digits of a SHA-256
    policy = {"evict": "other"}  # noqa: RUF012  only by age
    caching = True

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        self.manager, self.first_host = BlockManager(num_blocks, num_blocks, block_size), num_blocks
        self.cache = PrefixKVCache(self.manager, max_prefix_length=1 << 30, min_match_tokens=block_size)
        self.live, self.out, self.copied = {}, set(), []

    def add(self, seq, tokens):
        require_new(seq, ())  # nothing in it looks whether an id is live, or whether there are tokens
        require_tokens(tokens or [0])
        found, key = 0, str(seq)
        hit = self.cache.match(tokens) if self.caching else None
        try:
            if hit is not None:
                found = self.cache.fork_prefix(hit, key)
                for _ in tokens[found:]:
                    self.manager.append_slot(key)
            elif not self.manager.allocate(key, len(tokens)):
                raise MemoryError(f"no room for {len(tokens)} tokens")
        except MemoryError as error:
            self.manager.free(key)
            raise OutOfBlocks(str(error)) from error
        self.live[seq] = list(tokens)
        return found

    def append(self, seq, tokens):
        require_tokens(tokens)
        known = self.live[seq]
        if seq in self.out:
            raise Refused(f"{seq} is swapped out")
        try:
            self.manager.append_slot(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        known += tokens

    def commit(self, seq, computed):
        if self.caching:
            self.cache.register(str(seq), self.live[seq][:computed])

    def free(self, seq):
        del self.live[seq]
        self.out.discard(seq)
        self.manager.free(str(seq))

    def table(self, seq):
        return [] if seq in self.out else self.manager.get_block_table(str(seq))

    def free_blocks(self):
        return self.manager.num_free_gpu_blocks()

    def fork(self, parent, child):
        require_new(child, self.live)
        self.live[child] = list(self.live[parent])
        self.manager.fork(str(parent), str(child))

    def swap_out(self, seq):
        try:
            moved = self.manager.swap_out(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        self.copied += [(device, ("host", host - self.first_host)) for device, host in moved.items()]
        self.out.add(seq)

    def swap_in(self, seq):
        try:
            moved = self.manager.swap_in(str(seq))
        except MemoryError as error:
            raise OutOfBlocks(str(error)) from error
        self.copied += [(("host", host - self.first_host), device) for host, device in moved.items()]
        self.out.discard(seq)

    def copies(self):
        copied, self.copied = self.copied, []
        return copied


class Uncached(Manager):
    capabilities = Manager.capabilities - {"prefix"}
    caching = False


make = Manager
make_uncached = Uncached

"""Counts the hits and evictions of an ideal block cache: LRU, a sequence's tail before its head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class LruCounter:
    """Requests one after another; each holds `len(blocks) + 1` blocks while it runs.

    A pool of `capacity + 1` blocks: the one more is for the token behind the last full block.
    `capacity` None is a cache without end.
    """

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.cached: OrderedDict[Hashable, None] = OrderedDict()
        """Least recently used first."""
        self.hits = 0
        self.asked = 0
        self.evictions = 0

    def request(self, blocks: Sequence[Hashable]) -> int:
        """Count one request whose full blocks have these chained ids; returns its hits."""
        hit = 0
        for block in blocks:
            if block not in self.cached:
                break
            hit += 1
        for block in blocks[:hit]:
            self.cached.move_to_end(block)
        for block in blocks[hit:]:
            if block in self.cached:  # behind a gap: computed again, the old copy goes
                del self.cached[block]
                self.evictions += 1
            self.cached[block] = None
        if self.capacity is not None:
            while len(self.cached) > self.capacity:
                self.cached.popitem(last=False)
                self.evictions += 1
        for block in reversed(blocks):  # the tail is queued first
            if block in self.cached:
                self.cached.move_to_end(block)
        self.hits += hit
        self.asked += len(blocks)
        return hit

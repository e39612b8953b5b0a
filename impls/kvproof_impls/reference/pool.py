"""The block pool: owners of each block, free blocks, and the order of eviction (chapter 3.2.1, 3.2.5).

One int32 a block says everything: above 0 it is the number of owners, 0 is free, and below 0 the
block is evictable (nobody owns it, its contents can still be matched) and stands at entry
`-1 - state` of the log.

The log holds the evictable blocks in the order in which they lost their last owner. It is only
appended to; an entry whose block does not point back at it is dead. So a block leaves the queue by
changing its state, from any place, in O(1). A log that is full is compacted.

A pool of a million blocks costs one zeroed array: the stack of free blocks holds only blocks that
were used before, the others are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvproof.contract import OutOfBlocks

from .arrays import Index, Int32

_NONE: Int32 = np.empty(0, np.int32)
_LEAST_LOG = 4096


class Pool:
    """Blocks reserved..num_blocks-1; the first `reserved` ids are never handed out.

    `on_evict` is told which blocks are about to lose their contents.
    """

    def __init__(self, num_blocks: int, reserved: int, on_evict: Callable[[Int32], None]) -> None:
        self.state: Int32 = np.zeros(num_blocks, np.int32)
        self.capacity = num_blocks - reserved
        self.evictable = 0
        self._on_evict = on_evict
        self._unused = reserved  # blocks from here on were never taken
        self._stack: Int32 = np.empty(0, np.int32)
        self._top = 0
        self._log: Int32 = np.empty(0, np.int32)
        self._places: Int32 = np.empty(0, np.int32)  # the state that points at each entry of the log
        self._head = 0
        self._tail = 0

    @property
    def free(self) -> int:
        """Blocks without an owner and without contents."""
        return self._top + len(self.state) - self._unused

    @property
    def available(self) -> int:
        """Blocks that can be taken: free and evictable."""
        return self.free + self.evictable

    def take(self, count: int) -> Int32:
        """`count` blocks with one owner each: used ones first, then new ones, then the evicted.

        Raises:
            OutOfBlocks: fewer are available; nothing was taken.
        """
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks needed, {self.available} available")
        parts: list[Int32] = []
        used = min(count, self._top)
        if used:
            self._top -= used
            parts.append(self._stack[self._top : self._top + used][::-1].copy())
        unused = min(count - used, len(self.state) - self._unused)
        if unused:
            parts.append(np.arange(self._unused, self._unused + unused, dtype=np.int32))
            self._unused += unused
        if count > used + unused:
            parts.append(self.evict(count - used - unused))
        blocks = parts[0] if len(parts) == 1 else np.concatenate((_NONE, *parts))
        self.state[blocks] = 1
        return blocks

    def evict(self, count: int) -> Int32:
        """Take the contents from the `count` evictable blocks that were released first."""
        chosen: list[Int32] = []
        self.evictable -= count
        while count:
            stop = min(self._tail, self._head + 2 * count + 64)
            piece = self._log[self._head : stop]
            alive = (self.state.take(piece) == self._places[self._head : stop]).nonzero()[0][:count]
            self._head = self._head + int(alive[-1]) + 1 if len(alive) == count else stop
            count -= len(alive)
            chosen.append(piece[alive])
        victims = chosen[0] if len(chosen) == 1 else np.concatenate((_NONE, *chosen))
        self.state[victims] = 0
        self._on_evict(victims)
        return victims

    def retain(self, blocks: Index) -> None:
        """One more owner for each of these distinct blocks; evictable ones leave the queue."""
        if not len(blocks):
            return
        owners = self.state.take(blocks)
        idle = int(np.count_nonzero(owners < 0))
        if idle:
            self.evictable -= idle
            owners = np.maximum(owners, 0)
        self.state[blocks] = owners + 1

    def release(self, blocks: Index) -> Index:
        """One owner less for each of these distinct blocks; returns those that lose the last one.

        The caller gives each of them to `push` or to `queue`, which set their state.
        """
        owners = self.state[blocks]
        # Usually no block has more owners, and argmax finds that out at half the cost of `> 1`.
        if not len(owners) or owners.item(owners.argmax()) <= 1:
            return blocks
        shared = owners > 1
        self.state[blocks[shared]] = owners[shared] - 1
        return blocks[~shared]

    def push(self, blocks: Index) -> None:
        """Ownerless blocks become free; the last one is taken first."""
        stop = self._top + len(blocks)
        if stop > len(self._stack):
            stack = np.empty(min(2 * stop, len(self.state)), np.int32)
            stack[: self._top] = self._stack[: self._top]
            self._stack = stack
        self._stack[self._top : stop] = blocks
        self.state[blocks] = 0
        self._top = stop

    def queue(self, blocks: Index) -> None:
        """Ownerless blocks become evictable; the first one is evicted first."""
        if self._tail + len(blocks) > len(self._log):
            self._compact(len(blocks))
        stop = self._tail + len(blocks)
        self._log[self._tail : stop] = blocks
        self.state[blocks] = self._places[self._tail : stop]
        self._tail = stop
        self.evictable += len(blocks)

    def drop(self, blocks: Sequence[int]) -> None:
        """Those of these blocks that are evictable become free: their contents are forgotten."""
        idle = [block for block in blocks if self.state[block] < 0]
        self.evictable -= len(idle)
        self.push(np.array(idle, np.int32))

    def queued(self) -> Int32:
        """The evictable blocks, the next victim first."""
        entries: Int32 = self._log[self._head : self._tail]
        alive: Int32 = entries[self.state.take(entries) == self._places[self._head : self._tail]]
        return alive

    def stacked(self) -> Int32:
        """The free blocks that were used before, the next one last."""
        return self._stack[: self._top]

    def unused(self) -> range:
        """The blocks that were never taken."""
        return range(self._unused, len(self.state))

    def _compact(self, more: int) -> None:
        # At least half of the log is empty afterwards, so an entry costs O(1) on average.
        alive = self.queued()
        size = len(alive) + more
        if 2 * size > len(self._log):
            self._log = np.empty(max(2 * size, _LEAST_LOG), np.int32)
            self._places = np.arange(-1, -1 - len(self._log), -1, dtype=np.int32)
        self._log[: len(alive)] = alive
        self.state[alive] = self._places[: len(alive)]
        self._head, self._tail = 0, len(alive)

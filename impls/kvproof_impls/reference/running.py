"""The running requests: who gets blocks, and who loses them (chapter 3.2.3).

A new request needs blocks for its prompt, and `watermark` blocks must be left. One that was preempted
needs blocks for all its known tokens, and enough must be left for all that run to grow to their ends,
itself included. The victim of a preemption is the last in the declared order among the running that
never lost their blocks, possibly the one that needs a block. Its blocks always help: its last position
is not computed, so that position's block is shared with nobody, or is one of those that are missing.

So every request is preempted at most once. A victim was never preempted before; to show is that there
is one whenever a block is missing. Suppose that all running requests R have come back. Look at the last
moment t when one of them did: the free blocks covered what everyone running then had still to grow.
Each of R ran at t, and has taken one free block for each block it has grown since. Whoever was admitted
after t, or ran at t and is not in R, is gone with its blocks. So the free blocks still cover what R has
to grow, and none is missing.
"""

from __future__ import annotations

from typing import Any

from kvproof.contract import OutOfBlocks

from .arrays import Int32
from .decoding import DecodeBatch
from .manager import Manager
from .requests import Request, State


class Running:
    """Requests that hold blocks of a manager.

    Attributes:
        batch: those with one token to compute, until a step changes that.
        chunks: the others, by id: behind an admission, or after several tokens at once.
    """

    def __init__(self, manager: Manager, watermark: int, swap: bool) -> None:
        self.manager = manager
        self.batch = DecodeBatch(manager)
        self.chunks: dict[int, Request] = {}
        self._watermark = watermark
        self._swap = swap
        self._blocks_at_end = 0  # of all that run

    def __len__(self) -> int:
        return len(self.batch) + len(self.chunks)

    def blocks_at_end(self, request: Request) -> int:
        """Blocks it has when it is done."""
        return self.manager.tables.blocks_of(request.positions)

    def table(self, request: Request) -> Int32:
        """Its block table, a view."""
        return self.manager.tables.blocks(self.manager.tables.row(request.rid))

    # ------------------------------------------------------------ coming and going

    def start(self, request: Request) -> bool:
        """Give a waiting request blocks for all its known tokens; False if it must wait."""
        tables, free = self.manager.tables, self.manager.free_blocks()
        spare, known = self._watermark, tables.blocks_of(request.length)
        if request.preempted:
            spare += self._blocks_at_end - int(tables.num_blocks.sum()) + self.blocks_at_end(request) - known
        if request.away:
            if known + spare > free:
                return False
            self.manager.swap_in(request.rid)
            request.away = False
            self._extend(request)
        else:
            tokens: Any = request.tokens()
            if spare and self.manager.blocks_to_add(tokens) + spare > free:
                return False
            try:
                request.computed = self.manager.add(request.rid, tokens)
            except OutOfBlocks:
                return False
        request.state = State.CHUNKS
        self.chunks[request.rid] = request
        self._blocks_at_end += self.blocks_at_end(request)
        return True

    def to_batch(self, requests: list[Request]) -> None:
        """Each of these chunks has one token to compute now."""
        for request in requests:
            del self.chunks[request.rid]
            self.batch.join(request)

    def to_chunks(self, requests: list[Request]) -> None:
        """These leave the batch and go on running."""
        for request in requests:
            self.batch.leave(request)
            self.chunks[request.rid] = request

    def end(self, requests: list[Request]) -> None:
        """These leave for good."""
        self._stop(requests)
        for request in requests:
            request.state = State.ENDED
            self.manager.free(request.rid)

    def _stop(self, requests: list[Request]) -> None:
        """These run no more; their blocks are for the caller."""
        self.to_chunks([r for r in requests if r.state is State.DECODE])
        for request in requests:
            del self.chunks[request.rid]
            self._blocks_at_end -= self.blocks_at_end(request)

    # ------------------------------------------------------------ growing

    def reserve(self) -> list[Request]:
        """Blocks for every known token of all that run; returns who lost theirs for that."""
        victims: list[Request] = []
        for request in sorted(self.chunks.values(), key=lambda r: r.key):
            while request.state is State.CHUNKS and not self._extend(request):
                victims.append(self._preempt())
        while True:
            tokens: Any = self.batch.tokens
            try:
                self.manager.append_batch(self.batch.seqs, tokens)
            except OutOfBlocks:
                victims.append(self._preempt())
            else:
                return victims

    def extend_by(self, request: Request, drafts: list[int]) -> int:
        """Append as many drafts as there is room for without a preemption; returns how many."""
        size, length = self.manager.block_size, request.length
        room = min(request.positions - length, -length % size + size * self.manager.free_blocks())
        if room and drafts:
            self.manager.append(request.rid, drafts[:room])
        return min(room, len(drafts))

    def _extend(self, request: Request) -> bool:
        """Append the known tokens that the manager does not have; False if there are no blocks."""
        tables = self.manager.tables
        start = tables.seq_lens.item(tables.row(request.rid))
        if start < request.length:
            tokens: Any = request.tokens(start)
            try:
                self.manager.append(request.rid, tokens)
            except OutOfBlocks:
                return False
        return True

    def _preempt(self) -> Request:
        """Take the blocks of one request."""
        fresh = [r for r in (*self.batch.requests, *self.chunks.values()) if not r.preempted]
        victim = max(fresh, key=lambda r: r.key)
        self._stop([victim])
        victim.state, victim.preempted = State.WAITING, True
        if self._swap:
            try:
                self.manager.swap_out(victim.rid)
                victim.away = True
            except OutOfBlocks:
                pass  # the host tier is full
        if not victim.away:
            self.manager.free(victim.rid)
        return victim

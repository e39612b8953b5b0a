"""A request of the scheduler, and the queue of those that wait."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from .arrays import Int32


class State(Enum):
    """Where a request is."""

    WAITING = auto()  # in the queue, new or preempted
    CHUNKS = auto()  # running, with more than one token to compute (or one, right after admission)
    DECODE = auto()  # running, in the decode batch
    ENDED = auto()


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and what was generated for it.

    Attributes:
        rid: its id; also the sequence id in the manager.
        key: its place in the declared order, smaller goes first; no two are equal.
        prompt: int32 [n].
        max_new: tokens it wants.
        generated, computed: tokens sampled so far, and positions whose KV is in the cache. In state
            DECODE the batch knows better: see `DecodeBatch`.
        preempted: it has lost its blocks once. It cannot lose them again.
        away: it is swapped out.
        drafts: proposed tokens, for the next step that samples.
    """

    rid: int
    key: tuple[int, int]
    prompt: Int32
    max_new: int
    generated: list[int] = field(default_factory=list)
    state: State = State.WAITING
    computed: int = 0
    preempted: bool = False
    away: bool = False
    drafts: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens known so far."""
        return len(self.prompt) + len(self.generated)

    @property
    def positions(self) -> int:
        """Positions it computes in all: the last token is sampled and never computed."""
        return len(self.prompt) + self.max_new - 1

    @property
    def done(self) -> bool:
        return len(self.generated) >= self.max_new

    def take(self, tokens: Sequence[int]) -> None:
        """Generated tokens, as far as it wants them."""
        self.generated += tokens[: self.max_new - len(self.generated)]

    def tokens(self, start: int = 0) -> Int32:
        """All known tokens from position `start` on."""
        if start >= len(self.prompt):
            return np.array(self.generated[start - len(self.prompt) :], np.int32)
        return np.concatenate((self.prompt[start:], np.array(self.generated, np.int32)))


class Waiting:
    """The waiting requests, first in the declared order first: O(log n) a change.

    Whoever leaves from the middle stays in the heap as a dead entry until it comes up, or until
    half of the heap is dead.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Request]] = []
        self._dead = 0

    def push(self, request: Request) -> None:
        request.state = State.WAITING
        heapq.heappush(self._heap, (request.key, request))

    def head(self) -> Request | None:
        """Who is next, None if nobody waits."""
        while self._heap and self._heap[0][1].state is not State.WAITING:
            heapq.heappop(self._heap)
            self._dead -= 1
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Take out the head."""
        heapq.heappop(self._heap)

    def leave(self, request: Request) -> None:
        """Take out any request, which ends."""
        request.state = State.ENDED
        self._dead += 1
        if 2 * self._dead > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[1].state is State.WAITING]
            heapq.heapify(self._heap)
            self._dead = 0

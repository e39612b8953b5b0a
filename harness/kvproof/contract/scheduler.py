"""Schedulers: who computes what in the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kvproof.contract.manager import Block


@runtime_checkable
class Scheduler(Protocol):
    """Continuous batching: who computes what in the next step (chapter 3.2.3).

    Made by a factory `make(num_blocks, block_size, max_seqs, max_tokens)`: a step computes at most
    max_tokens positions of at most max_seqs requests; max_tokens is at least max_seqs, so that all can
    decode in one step, unless its capabilities name `tight_budget`. The caller is the model: it computes what
    `plan` says and feeds one sampled token a row.

    Attributes: `policy` (see Policy), `reserved` (see ManagerOptions).
    """

    capabilities: frozenset[str]

    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        """A new request: its prompt, and how many tokens it wants (at least 1).

        The last token is sampled and never computed, so it needs len(tokens) + max_new - 1
        positions. It fits if their blocks are at most the usable ones (reserved and watermark taken
        off) and, without the capability `chunked`, they are at most max_tokens: an engine that computes
        a prompt in one step refuses what it could not compute, or compute again after a preemption, in
        one. What fits is accepted; what never fits is Refused here, or given up later (`rejected`).
        priority: a larger one goes first (policy order "priority").

        Raises:
            Refused: it can never fit. BadInput: negative or duplicate id, no tokens, max_new < 1.
        """
        ...

    def has_work(self) -> bool:
        """Some request is neither finished, aborted nor rejected."""
        ...

    def plan(self) -> Sequence[tuple[int, int, int, Sequence[int]]]:
        """The next step: (rid, lo, hi, table) a row.

        It computes positions lo..hi-1 of the request's tokens (prompt and generated), reading
        0..hi-1 through `table`. Positions below lo are in the cache. hi = length: the row samples.
        Called in every step, also with nothing to do: then, as when nothing can run now, it is empty.
        """
        ...

    def feed(self, tokens: Sequence[int]) -> Sequence[int]:
        """The sampled tokens, one for each row of the last plan, in order; returns who finished.

        A row with hi < length samples nothing: its token is poison and must never be used. So is that
        of a row whose request was aborted since the plan: it has its entry all the same. After an empty
        plan `tokens` is empty.
        """
        ...

    def abort(self, rid: int) -> None:
        """End a request in any state; unknown or ended: UnknownSequence or nothing."""
        ...

    def preempted(self) -> Sequence[int]:
        """Requests that lost their blocks since the last call."""
        ...

    def free_blocks(self) -> int:
        """Blocks that nobody holds: free and evictable."""
        ...


class SchedulerOptions(Protocol):
    """Members of a scheduler that are judged when its capabilities name them."""

    # copies: block copies of the step, in order, replayed before its writes
    def copies(self) -> list[tuple[Block, Block]]:
        """(source, target) since the last call; `("host", i)` is the host tier."""
        ...

    # rejected
    def rejected(self) -> list[tuple[int, str]]:
        """(rid, reason) of requests given up since the last call."""
        ...

    # speculate
    def propose(self, rid: int, drafts: Sequence[int]) -> None:
        """Draft tokens, computed behind the known ones by the next row of rid that samples.

        That row's hi passes the length by as many drafts as there was room for. Its entry in `feed`
        may then be a list of tokens: drafts that it equals are accepted, the others truncated.
        """
        ...

    # output
    def output(self, rid: int) -> Sequence[int]:
        """The tokens generated for a request, while it runs and after it finished."""
        ...

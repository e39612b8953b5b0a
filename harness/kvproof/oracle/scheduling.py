"""The scheduler model: what each request has computed, sampled and holds, from plans alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from kvproof.histories.play import next_token
from kvproof.oracle.fingerprints import Fingerprints


@dataclass(frozen=True)
class SchedulerFacts:
    """What the subject declares, and the shape it was made with."""

    num_blocks: int
    block_size: int
    max_seqs: int
    max_tokens: int
    capabilities: frozenset[str] = frozenset()
    reserved: frozenset[int] = frozenset()
    policy: Mapping[str, Any] = field(default_factory=dict)

    @property
    def capacity(self) -> int:
        return self.num_blocks - len(self.reserved)

    @property
    def usable(self) -> int:
        """Blocks that one request may fill."""
        return self.capacity - int(self.policy.get("watermark", 0))

    def never_fit(self, positions: int) -> bool:
        """They need more blocks than one request may fill or, without `chunked`, do not fit in a step."""
        one_step = "chunked" in self.capabilities or positions <= self.max_tokens
        return -(-positions // self.block_size) > self.usable or not one_step


@dataclass
class Request:
    """One request: every token known so far, and how far its KV is computed."""

    rid: int
    order: int
    """Place in the order of submission."""
    priority: int
    tokens: list[int]
    prints: list[int]
    prompt: int
    max_new: int
    computed: int = 0
    state: str = "waiting"
    """waiting, running, preempted, finished, aborted, rejected."""
    preemptions: int = 0
    progress: tuple[int, int, int] = (0, 0, 0)
    """At its last preemption: its length, tokens sampled of all requests, requests that had ended."""
    table: tuple[int, ...] = ()
    overtaken: int = 0
    since: int = 0
    """Steps before its submission."""

    @property
    def positions(self) -> int:
        """Positions that must be computed in all: the last token is only sampled."""
        return self.prompt + self.max_new - 1

    @property
    def generated(self) -> list[int]:
        return self.tokens[self.prompt :]

    @property
    def open(self) -> bool:
        return self.state in ("waiting", "running", "preempted")


class SchedulerModel:
    """All requests of a history, and what was written where."""

    def __init__(self, facts: SchedulerFacts) -> None:
        self.facts = facts
        self.prints = Fingerprints()
        self.requests: dict[int, Request] = {}
        self.written: dict[int, int] = {}
        self.steps = 0
        self.submitted = 0
        self.sampled = 0
        """Tokens of all requests together."""
        self.ended = 0
        self.aborted_between = False
        """Some request was aborted between a plan and its feed."""

    def request(self, rid: int, tokens: list[int], args: Mapping[str, Any]) -> Request:
        """A request as it is submitted; `args` holds max_new and priority."""
        prints, max_new = self.prints.extend([], tokens, None), int(args.get("max_new", 1))
        self.submitted += 1
        priority = int(args.get("priority", 0))
        order, since = self.submitted, self.steps
        return Request(rid, order, priority, list(tokens), prints, len(tokens), max_new, since=since)

    def wrong(self, rid: Any, tokens: list[int], args: Mapping[str, Any]) -> str:
        """What is wrong with a submit, empty if nothing is."""
        if rid < 0:
            return f"a negative id {rid}"
        if rid in self.requests and self.requests[rid].open:
            return f"id {rid} twice"
        if not tokens:
            return "no tokens"
        return "" if int(args.get("max_new", 1)) > 0 else f"max_new {args['max_new']}"

    def end(self, rid: Any, state: str) -> None:
        """A request ends, if it has not yet."""
        request = self.requests.get(rid)
        if request is not None and request.open:
            request.state, request.table = state, ()
            self.ended += 1

    def never_fits(self, request: Request) -> bool:
        """See `SchedulerFacts.never_fit`."""
        return self.facts.never_fit(request.positions)

    def prompt_never_fits(self, request: Request) -> bool:
        """Its prompt alone is too much."""
        return self.facts.never_fit(request.prompt)

    def shared(self, table: Sequence[int], now: Mapping[int, Sequence[int]]) -> int:
        """Leading positions of a table whose full blocks a running request has computed and holds.

        now: the tables of this plan, which replace the last ones seen: equal blocks may have been merged.
        """
        size, most = self.facts.block_size, 0
        for other in self.requests.values():
            full = other.computed // size if other.state == "running" else 0
            pairs = zip(table, now.get(other.rid, other.table)[:full], strict=False)
            most = max(most, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) * size)
        return most

    def wrote(self, writes: list[list[int]]) -> None:
        for serial, _, _, rid, position in writes:
            request = self.requests.get(rid)
            if request is not None and 0 <= position < len(request.prints):
                self.written[serial] = request.prints[position]

    def sample(self, request: Request) -> None:
        """The model's next token."""
        token = next_token(request.tokens)
        request.tokens.append(token)
        self.sampled += 1
        request.prints += self.prints.extend(request.prints, [token], None)

"""Serves a trace with a scheduler: requests come when the trace says, a virtual clock pays for the steps.

The harness is the model. A step takes what `Cost` says of its plan, a sampled token is made from the
request and the position, and no KV is kept: whether the contents are right is the conformance run's
business. What plans, tables and answers say is checked all the same, since a wrong one has no time.
The time that this machine takes for the scheduler's calls is measured beside it and does not
move the virtual clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from kvproof.bench.clock import quiet
from kvproof.bench.holdings import Holdings
from kvproof.bench.lru import Endless
from kvproof.bench.served import Cost, Served
from kvproof.bench.subject import Subject, Wrong
from kvproof.bench.traces import Request, Trace, prompt_tokens
from kvproof.contract import Refused
from kvproof.histories.play import POISON
from kvproof.subjects.drive import describe

IDLE_STEPS = 4
"""So many empty plans in a row while nobody else arrives, and the scheduler is stuck."""


@dataclass(slots=True, eq=False)
class Open:
    """A request that has not ended.

    length: tokens known. end: length at which it is done. computed: positions in the cache, -1 while
    it holds no blocks. reached: positions computed once. blocks: its table.
    """

    rid: int
    request: Request
    arrival: float
    prompt: int
    length: int
    end: int
    computed: int = -1
    reached: int = 0
    started: bool = False
    first_s: float = -1.0
    blocks: list[int] = field(default_factory=list)


def sampled(rid: int, position: int) -> int:
    """The token that request `rid` samples behind `position` positions: no token of a prompt, below 2^31."""
    return 1 << 30 | (rid * 1_000_003 + position * 8_191) & 0x3FFFFFFF


def serve(
    subject: Subject,
    trace: Trace,
    blocks: int,
    cost: Cost,
    max_seqs: int,
    max_tokens: int,
    seconds: float = float("inf"),
) -> Served:
    """Serve a trace to its end.

    Args:
        trace: every request has block ids (`with_ids`). One without output asks for one token.
        blocks: that requests may take.
        max_seqs, max_tokens: budgets of a step.
        seconds: a scheduler that has used this much of this machine is stopped; what is left is aborted.

    Raises:
        Unsupported: the subject has no scheduler.
    """
    run = _Run(subject, trace, blocks, cost, max_seqs, max_tokens, seconds)
    with quiet():
        try:
            run.all()
        except Wrong as e:
            run.served.invalid = f"step {len(run.served.nanoseconds)}: {e}"
        except Exception as e:
            run.served.invalid = f"step {len(run.served.nanoseconds)}: {describe(e)}"
    return run.served


class _Run:
    def __init__(
        self,
        subject: Subject,
        trace: Trace,
        blocks: int,
        cost: Cost,
        max_seqs: int,
        max_tokens: int,
        seconds: float,
    ) -> None:
        self.scheduler = subject.open_scheduler(blocks, max_seqs, max_tokens)
        self.size, self.cost, self.max_seqs, self.max_tokens = subject.block_size, cost, max_seqs, max_tokens
        names = frozenset(self.scheduler.capabilities)
        self.partial, self.copies = "partial" in names, "copies" in names
        self.stale = False  # what is known of the tables holds more blocks than there can be
        self.rejects, self.outputs = "rejected" in names, "output" in names
        self.whole = self.scheduler.free_blocks()
        self.requests = trace.requests
        self.served = Served(len(trace.requests))
        self.open: dict[int, Open] = {}
        self.holdings = Holdings()
        self.endless = Endless(self.size)
        self.now = self.requests[0].arrival_s
        self.arrived = self.running = self.live = self.idle = 0  # live: computed positions of all
        self.limit, self.spent = seconds * 1e9, 0

    def all(self) -> None:
        """Steps until every request has ended, or the time is up."""
        while self.open or self.arrived < len(self.requests):
            if not self.open:
                self.now = max(self.now, self.requests[self.arrived].arrival_s)
            spent = self._arrive()
            if not self.open:
                continue
            self._step(spent)
            if self.spent > self.limit:
                self.served.stopped = True
                for rid in list(self.open):
                    self.scheduler.abort(rid)
                break
        self.served.virtual_s = self.now - self.requests[0].arrival_s
        if self.scheduler.has_work():
            raise Wrong("has_work() is true after all requests have ended")
        free = self.scheduler.free_blocks()
        if free != self.whole:
            raise Wrong(f"{free} blocks are free after all requests have ended, expected {self.whole}")

    # ------------------------------------------------------------ coming and going

    def _arrive(self) -> int:
        """Submit who has arrived by now; nanoseconds of the calls."""
        spent, clock = 0, time.perf_counter_ns
        while self.arrived < len(self.requests) and self.requests[self.arrived].arrival_s <= self.now:
            rid, request = self.arrived, self.requests[self.arrived]
            tokens, new = prompt_tokens(request).tolist(), max(1, request.output_tokens)
            self.arrived += 1
            start = clock()
            try:
                self.scheduler.submit(rid, tokens, new)
            except Refused:
                self.served.refused += 1
            else:
                length = len(tokens)
                self.open[rid] = Open(rid, request, request.arrival_s, length, length, length + new)
            spent += clock() - start
        return spent

    def _start(self, one: Open, low: int) -> None:
        """It runs from position `low` on: for the first time, or after a preemption."""
        if low < 0 or low >= one.length:
            raise Wrong(f"request {one.rid} of {one.length} tokens starts at position {low}")
        if not one.started:
            one.started = True
            ceiling = self.endless.request(one.request)
            if low // self.size > ceiling:
                seen = f"only {ceiling} of its blocks were ever asked"
                raise Wrong(f"request {one.rid} starts at position {low}, {seen}")
            self.served.asked_tokens += one.prompt
            self.served.ceiling_tokens += ceiling * self.size
            self.served.hit_tokens += low if self.partial else low // self.size * self.size
        self.running += 1
        self.live += low
        one.computed = low

    def _stop(self, one: Open) -> None:
        """It holds no blocks any more."""
        if one.computed >= 0:
            self.running -= 1
            self.live -= one.computed
            one.computed = -1
            self.holdings.drop(one.blocks)
            one.blocks.clear()

    def _preempted(self, rids: Sequence[int]) -> None:
        for rid in rids:
            one = self.open.get(rid)
            if one is None or one.computed < 0:
                raise Wrong(f"request {rid} is said to be preempted and does not run")
            self._stop(one)
            self.served.preemptions[rid] = self.served.preemptions.get(rid, 0) + 1

    def _end(self, one: Open) -> None:
        """It has all its tokens."""
        first, new = one.first_s, one.end - one.prompt
        if self.outputs:
            got = [int(t) for t in self.scheduler.output(one.rid)]
            if got != [sampled(one.rid, p) for p in range(one.prompt, one.end)]:
                raise Wrong(f"output({one.rid}) is not the {new} tokens that were fed for it")
        self._stop(one)
        del self.open[one.rid]
        self.served.finished += 1
        self.served.first_s.append(first - one.arrival)
        if new > 1:
            self.served.between_s.append((self.now - first) / (new - 1))

    # ------------------------------------------------------------ a step

    def _step(self, spent: int) -> None:
        """Plan, compute, feed; `spent` nanoseconds went into the submits before it."""
        scheduler, clock = self.scheduler, time.perf_counter_ns
        start = clock()
        rows = scheduler.plan()
        spent += clock() - start
        self._tables(rows)
        if self.copies:
            scheduler.copies()
        ended: list[Open] = []
        firsts: list[Open] = []
        fed = self._compute(rows, firsts, ended)
        start = clock()
        finished = scheduler.feed(fed)
        spent += clock() - start
        for one in firsts:
            one.first_s = self.now
        if sorted(finished) != sorted(one.rid for one in ended):
            raise Wrong(f"finished are {sorted(finished)}, all tokens have {sorted(o.rid for o in ended)}")
        running = self.running
        for one in ended:
            self._end(one)
        if self.rejects:
            for rid, _ in scheduler.rejected():
                self._stop(self.open.pop(rid))
                self.served.refused += 1
        self._watch(running)
        self.served.nanoseconds.append(spent)
        self.spent += spent
        self.idle = 0 if rows else self.idle + 1
        if self.idle == IDLE_STEPS:
            if self.arrived == len(self.requests):
                raise Wrong(f"nothing is planned, and {len(self.open)} requests are left")
            self.now, self.idle = max(self.now, self.requests[self.arrived].arrival_s), 0

    def _tables(self, rows: Sequence[Any]) -> None:
        """Read what is new in the tables, which are right until the next call, then who was preempted."""
        now: list[tuple[Open, int, Any]] = []
        for rid, low, _high, table in rows:
            one = self.open.get(rid)
            if one is None:
                raise Wrong(f"request {rid} is planned and has ended or never came")
            now.append((one, low, copy(table)))
        self._preempted(self.scheduler.preempted())
        again = self.stale or any(one.computed > 0 and not one.blocks for one, _low, _table in now)
        if self.stale:
            self._read_again(now)
            seen = {int(b) for _one, _low, table in now for b in table}
            self._fits(len(seen), self.scheduler.free_blocks())
        try:
            self._grow(now)
        except Wrong:
            again = True
            self._read_again(now)
            self._forget({one.rid for one, _low, _table in now})
            self._grow(now)
        if again:
            self._places(now)

    def _grow(self, now: Sequence[tuple[Open, int, Any]]) -> None:
        for one, low, table in now:
            if len(table) != len(one.blocks):
                blocks = [int(b) for b in table[len(one.blocks) :]]
                done = -(-low // self.size) if one.computed < 0 else one.computed // self.size
                self.holdings.take(blocks, max(0, done - len(one.blocks)))
                one.blocks += blocks

    def _read_again(self, now: Sequence[tuple[Open, int, Any]]) -> None:
        """Take tables as they are: full blocks of equal contents, computed apart, may have become one since.

        That is looked for only where blocks do not add up, since it takes comparing whole tables.
        """
        self.stale = False
        for one, _low, table in now:
            blocks = [int(b) for b in table[: len(one.blocks)]]
            for place, (old, new) in enumerate(zip(one.blocks, blocks, strict=False)):
                if old != new and (place + 1) * self.size > one.computed:
                    raise Wrong(f"entry {place} of request {one.rid} changes, and its block is not computed")
            self.holdings.drop(one.blocks)
            self.holdings.take(blocks, len(blocks))
            one.blocks = blocks

    def _forget(self, planned: set[int]) -> None:
        """Who runs and is not in this plan may have another table by now: it is read when it is planned."""
        for one in self.open.values():
            if one.rid not in planned and one.computed > 0:
                self.holdings.drop(one.blocks)
                one.blocks.clear()

    def _places(self, now: Sequence[tuple[Open, int, Any]]) -> None:
        """A block that several tables have is the same entry of each: it holds one history."""
        places: dict[int, tuple[int, int]] = {}
        for one, _low, _table in now:
            for place, block in enumerate(one.blocks):
                rid, other = places.setdefault(block, (one.rid, place))
                if other != place:
                    raise Wrong(f"block {block} is entry {place} of request {one.rid} and {other} of {rid}")

    def _fits(self, blocks: int, free: int) -> None:
        if blocks > self.whole - free:
            raise Wrong(f"{blocks} blocks are in tables, free_blocks() leaves {self.whole - free} for them")

    def _compute(self, rows: Sequence[Any], firsts: list[Open], ended: list[Open]) -> list[int]:
        """Check the rows, move the clock, and give what they sample; notes first tokens and ends."""
        prefill = decodes = context = again = 0
        fed: list[int] = []
        for rid, low, high, _ in rows:
            one = self.open[rid]
            if low != one.computed:
                if one.computed >= 0:
                    raise Wrong(f"request {rid} goes on at position {low}, expected {one.computed}")
                self._start(one, low)
            if not low < high <= one.length:
                raise Wrong(f"positions {low}..{high - 1} of request {rid}, which has {one.length} tokens")
            if high > len(one.blocks) * self.size:
                raise Wrong(f"the table of request {rid} has {len(one.blocks)} blocks for {high} positions")
            if high - low == 1 and low >= one.prompt:
                decodes += 1
            else:
                prefill += high - low
            if low < one.reached:
                again += min(high, one.reached) - low
            context += high
            one.computed = high
            one.reached = max(one.reached, high)
            if high < one.length:
                fed.append(POISON)
                continue
            fed.append(sampled(rid, high))
            one.length += 1
            if one.first_s < 0:
                firsts.append(one)
            if one.length == one.end:
                ended.append(one)
        if len(rows) > self.max_seqs or prefill + decodes > self.max_tokens:
            raise Wrong(f"{len(rows)} rows with {prefill + decodes} tokens are more than a step may have")
        self.live += prefill + decodes
        self.served.computed_tokens += prefill + decodes
        self.served.recomputed_tokens += again
        c = self.cost
        self.now += (c.step + c.prefill * prefill + c.decode * decodes + c.context * context) / 1e3
        return fed

    def _watch(self, running: int) -> None:
        """Waste and the other things that change over time, after a step that `running` requests were in."""
        served, free = self.served, self.scheduler.free_blocks()
        held = self.whole - free
        self.stale = len(self.holdings) > held  # judged when the next plan shows the tables again
        slots = held * self.size
        waste = 1 - (self.live - self.holdings.repeats * self.size) / slots if slots else 0.0
        if slots:
            served.waste.append(waste)
        served.most_running = max(served.most_running, running)
        waiting = len(self.open) - self.running
        served.series.add(self.now, self.running, waiting, free, served.hit_tokens, waste)

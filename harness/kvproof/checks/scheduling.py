"""Judges a scheduler: every plan, what it reads, and how every request ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from kvproof.checks.first import first_of_each
from kvproof.histories.play import POISON
from kvproof.oracle.scheduling import Request, SchedulerFacts, SchedulerModel
from kvproof.records import Case, Finding, Observation


def judge_scheduler(case: Case, facts: SchedulerFacts, observations: Sequence[Observation]) -> list[Finding]:
    """Findings in order of operation, the first of each requirement."""
    model = SchedulerModel(facts)
    steps = (_Operation(case, index, seen, model) for index, seen in enumerate(observations))
    return first_of_each(case, (finding for step in steps for finding in step.findings()))


@dataclass
class _Operation:
    """One operation of the history, and the steps it took."""

    case: Case
    index: int
    seen: Observation
    model: SchedulerModel

    def finding(self, requirement: str, expected: str, got: str) -> Finding:
        return Finding(requirement=f"KVP-{requirement}", step=self.index, expected=expected, got=got)

    def findings(self) -> Iterator[Finding]:
        op, seen, model = self.case.history[self.index], self.seen, self.model
        if op.op == "submit":
            yield from self._submitted()
        elif op.op == "abort" and seen.outcome == "ok":
            model.end(op.seq, "aborted")
        for step in seen.value or [] if op.op in ("step", "drain") else []:
            yield from self._step(step)
        yield from self._planned_as_expected()
        if seen.outcome == "error":
            yield from self._died()
        elif op.op in ("step", "drain") and seen.outcome not in ("ok", "skipped"):
            got = f"{seen.outcome}: {seen.detail}"
            lost = self.finding("SCHED-005", "plan and feed answer: what runs out is theirs to handle", got)
            yield from list(self._died()) or [lost]
        elif op.op == "drain":
            yield from self._drained()
        if seen.free is not None and not any(r.open for r in model.requests.values()):
            yield from self._whole(seen.free)

    # ------------------------------------------------------------ submit and end

    def _submitted(self) -> Iterator[Finding]:
        op, seen = self.case.history[self.index], self.seen
        args = op.args or {}
        wrong = self.model.wrong(op.seq, list(op.tokens or ()), args)
        if wrong:
            if seen.outcome == "ok":
                yield self.finding("SCHED-010", f"an error that names what is wrong: {wrong}", "it succeeded")
            return
        request = self.model.request(op.seq, list(op.tokens or ()), args)
        if seen.outcome == "ok":
            self.model.requests[op.seq] = request
        elif seen.outcome != "error" and not self.model.never_fits(request):
            got = f"{seen.outcome}: {seen.detail}"
            yield self.finding("SCHED-005", f"{op} fits the pool and is accepted", got)

    def _planned_as_expected(self) -> Iterator[Finding]:
        """What the case says of the last step; it speaks of subjects that keep no blocks back."""
        expect, steps = self.case.history[self.index].expect or {}, self.seen.value
        if "rows" not in expect or not steps or self.model.facts.usable < self.model.facts.capacity:
            return
        if sorted(row[0] for row in steps[-1]["rows"]) != sorted(expect["rows"]):
            for aim in self.case.aim:
                yield self.finding(aim.removeprefix("KVP-"), f"a step of {expect['rows']}", _plan(steps[-1]))

    def _died(self) -> Iterator[Finding]:
        """A step has ended in an exception while a request was there that can never fit."""
        huge = [r.rid for r in self.model.requests.values() if r.open and self.model.never_fits(r)]
        if huge:
            text = f"{huge[0]} can never fit: it is refused and the others go on"
            yield self.finding("SCHED-004", text, self.seen.detail)

    def _drained(self) -> Iterator[Finding]:
        left = [r for r in self.model.requests.values() if r.open]
        huge = [r.rid for r in left if self.model.never_fits(r)]
        small = {r.rid: r.state for r in left if not self.model.never_fits(r)}
        steps = len(self.seen.value or [])
        if huge:
            got = f"still there after {steps} steps" + (f", and behind it {small}" if small else "")
            yield self.finding("SCHED-004", f"{huge[0]} can never fit: refused within a step", got)
        elif small:
            idle = sum(1 for _ in takewhile(lambda step: not step["rows"], reversed(self.seen.value or [])))
            got = f"after {steps} steps, of which the last {idle} planned nothing, are left: {small}"
            yield self.finding("SCHED-005", "every request ends", got)

    def _whole(self, free: int) -> Iterator[Finding]:
        facts, requests = self.model.facts, self.model.requests.values()
        if free in (facts.capacity, facts.usable):
            return
        names = ["SCHED-011"]
        names += ["SCHED-007"] if any(r.state == "aborted" for r in requests) else []
        names += ["PREEMPT-002"] if any(r.preemptions for r in requests) else []
        for name in names:
            yield self.finding(name, f"{facts.usable} blocks free: nothing is left to run", f"{free}")

    # ------------------------------------------------------------ a step, in the order in which it happened

    def _step(self, step: dict[str, Any]) -> Iterator[Finding]:
        self.model.steps += 1
        yield from self._preempted(step)
        yield from self._rejected(step)
        yield from self._budgets(step)
        yield from self._who(step)
        yield from self._order(step)
        yield from self._hits(step)
        for rid, lo, hi, table in step["rows"]:
            request = self.model.requests.get(rid)
            if request is not None and request.open:
                yield from self._row(request, lo, hi, tuple(table))
        self.model.wrote(step["writes"])
        yield from self._read(step)
        if "fed" not in step:
            return  # it broke off in this step
        self.model.end(step.get("aborted"), "aborted")
        self.model.aborted_between |= "aborted" in step
        for rid, _, hi, _ in step["rows"]:
            request = self.model.requests.get(rid)
            if request is not None and request.open and hi == len(request.tokens):
                self.model.sample(request)
        yield from self._ended(step)
        yield from self._given_back(step)
        for request in self.model.requests.values():
            late = request.open and request.since < self.model.steps
            if late and self.model.prompt_never_fits(request):
                text = f"{request.rid} can never fit: refused within a step"
                yield self.finding("SCHED-004", text, f"{request.state} after it")

    def _preempted(self, step: dict[str, Any]) -> Iterator[Finding]:
        bound = self.model.facts.policy.get("max_preemptions")
        to_host = any(isinstance(target, tuple | list) for _, target in step["copies"])
        for rid in step["preempted"]:
            request = self.model.requests.get(rid)
            if request is None or not request.open:
                continue
            request.preemptions += 1
            length, sampled, ended = len(request.tokens), self.model.sampled, self.model.ended
            before, sampled_before, ended_before = request.progress
            if request.preemptions > 1 and sampled == sampled_before:
                text = f"some request gains a token between two preemptions of {rid}"
                yield self.finding("PREEMPT-002", text, f"{rid} is preempted again, and none has")
            if bound is not None and request.preemptions > 1 and (length, ended) == (before, ended_before):
                text = f"{rid} gains a token between two preemptions of it, or another request ends"
                yield self.finding("PREEMPT-003", text, f"preempted again at {length} tokens")
            if bound is not None and request.preemptions > int(bound):
                yield self.finding(
                    "PREEMPT-003", f"at most {bound} preemptions of {rid}", f"{request.preemptions}"
                )
            request.state, request.table = "preempted", ()
            request.progress = length, sampled, ended
            if not to_host:
                request.computed = 0

    def _rejected(self, step: dict[str, Any]) -> Iterator[Finding]:
        for rid, reason in step["rejected"]:
            request = self.model.requests.get(rid)
            if request is not None and request.open and not self.model.never_fits(request):
                yield self.finding("SCHED-005", f"{rid} fits the pool and is served", f"rejected: {reason}")
            if not reason:
                yield self.finding("SCHED-004", f"a reason for rejecting {rid}", "none")
            self.model.end(rid, "rejected")

    def _budgets(self, step: dict[str, Any]) -> Iterator[Finding]:
        facts, rows = self.model.facts, step["rows"]
        tokens = sum(hi - lo for _, lo, hi, _ in rows)
        blocks = {b for row in rows for b in row[3]}
        for what, most, count in (
            ("tokens", facts.max_tokens, tokens),
            ("sequences", facts.max_seqs, len(rows)),
            ("blocks", facts.capacity, len(blocks - facts.reserved)),
        ):
            if count > most:
                yield self.finding("SCHED-001", f"at most {most} {what} in a step", f"{count}: {_plan(step)}")

    def _who(self, step: dict[str, Any]) -> Iterator[Finding]:
        """SCHED-002, SCHED-007: who may be in a plan."""
        rids = [row[0] for row in step["rows"]]
        for rid in rids:
            request = self.model.requests.get(rid)
            if rids.count(rid) > 1:
                yield self.finding("SCHED-002", f"{rid} once", _plan(step))
            elif rid in step["preempted"]:
                yield self.finding("SCHED-002", f"{rid} was preempted in this step: not planned", _plan(step))
            elif request is None or not request.open:
                state = request.state if request else "unknown"
                yield self.finding("SCHED-002", f"{rid} is {state}: not planned", _plan(step))
                if state == "aborted":
                    yield self.finding("SCHED-007", f"{rid} is aborted: not planned", _plan(step))

    def _order(self, step: dict[str, Any]) -> Iterator[Finding]:
        """SCHED-006, PREEMPT-002: who starts before whom."""
        policy, requests = self.model.facts.policy, self.model.requests
        starting = [requests[r] for r, *_ in step["rows"] if r in requests and requests[r].state in WAITING]
        waiting = [r for r in requests.values() if r.state in WAITING and not self.model.never_fits(r)]
        for one in starting:
            for other in waiting:
                if other in starting:
                    continue
                got = f"{one.rid} starts: {_plan(step)}"
                if policy.get("order") == "fcfs" and other.order < one.order:
                    other.overtaken += 1
                    most = int(policy.get("overtake", 0))
                    if other.overtaken > most:
                        yield self.finding(
                            "SCHED-006", f"at most {most} later ones start before {other.rid}", got
                        )
                    if other.overtaken > most and other.state == "preempted":
                        yield self.finding("PREEMPT-002", f"{other.rid} was preempted: it returns first", got)
                if policy.get("order") == "priority" and other.priority > one.priority:
                    yield self.finding(
                        "SCHED-006", f"{other.rid} has priority {other.priority}: it starts first", got
                    )

    def _hits(self, step: dict[str, Any]) -> Iterator[Finding]:
        """SCHED-003: who starts, starts at its hit. (The last token is computed in any case.)"""
        now = {row[0]: row[3] for row in step["rows"]}
        for rid, lo, _, table in step["rows"]:
            request = self.model.requests.get(rid)
            if request is None or request.state not in WAITING:
                continue
            hit = min(self.model.shared(table, now), len(request.tokens) - 1)
            if lo < hit:
                text = f"{rid} starts at {hit} or later: blocks up to there are computed, and read by others"
                yield self.finding("SCHED-003", text, _plan(step))

    def _row(self, request: Request, lo: int, hi: int, table: tuple[int, ...]) -> Iterator[Finding]:
        rid, length, got = request.rid, len(request.tokens), f"positions [{lo}, {hi})"
        if hi <= lo:
            yield self.finding("SCHED-002", f"work for {rid}", got)
        if lo < 0 or hi > length:
            yield self.finding("SCHED-003", f"positions of {rid} below its length {length}", got)
            if request.preemptions:
                yield self.finding("PREEMPT-001", f"positions of {rid} below its length {length}", got)
        if request.state == "running" and lo != request.computed:
            over = ": it starts again, though no step named it as preempted" if not lo else ""
            yield self.finding("SCHED-003", f"{rid} goes on at position {request.computed}", got + over)
        if len(table) * self.model.facts.block_size < hi:
            yield self.finding("SCHED-002", f"a table of {rid} that covers {hi} positions", f"{list(table)}")
        request.state, request.computed, request.table = "running", hi, table

    def _read(self, step: dict[str, Any]) -> Iterator[Finding]:
        """SCHED-003, PREEMPT-001: every row reads its own history."""
        for rid, lo, hi, _ in step["rows"]:
            request = self.model.requests.get(rid)
            if request is None:
                continue
            for position, serial in enumerate(step["reads"].get(rid, [])[: len(request.prints)]):
                got = self.model.written.get(serial)
                if got != request.prints[position]:
                    text = f"{rid}, computing [{lo}, {hi}), reads its own history at position {position}"
                    holds = "a slot never written" if got is None else "the KV of another history"
                    for name in ("SCHED-003", "PREEMPT-001") if request.preemptions else ("SCHED-003",):
                        yield self.finding(name, text, holds)
                    break

    def _ended(self, step: dict[str, Any]) -> Iterator[Finding]:
        for rid in step["finished"]:
            request = self.model.requests.get(rid)
            if request is None or request.state == "aborted":
                continue
            if len(request.generated) != request.max_new:
                got = f"{len(request.generated)}"
                yield self.finding("SCHED-005", f"{rid} ends with {request.max_new} tokens", got)
            said = step.get("outputs", {}).get(rid)
            if said is not None and said != request.generated:
                names = ["PREEMPT-001" if POISON in said or request.preemptions else "SCHED-005"]
                for name in names + ["SCHED-007"] * self.model.aborted_between:
                    yield self.finding(name, f"output of {rid}: {request.generated}", f"{said}")
            self.model.end(rid, "finished")
        for request in self.model.requests.values():
            if request.state == "running" and len(request.generated) >= request.max_new:
                yield self.finding("SCHED-005", f"{request.rid} has its tokens and ends", "it goes on")
                self.model.end(request.rid, "finished")

    def _given_back(self, step: dict[str, Any]) -> Iterator[Finding]:
        """PREEMPT-002: where all that runs was planned, its tables say what may be held.

        With a cache one that waits may have been let in, and hold blocks that it has found.
        """
        planned = {row[0] for row in step["rows"]}
        idle = [r for r in self.model.requests.values() if r.open and r.rid not in planned]
        running = [r for r in self.model.requests.values() if r.state == "running"]
        if not step["preempted"] or any(r.state == "running" for r in idle):
            return
        if "prefix" in self.model.facts.capabilities and any(r.rid not in step["preempted"] for r in idle):
            return
        spare = self.model.facts.usable - len({b for r in running for b in r.table})
        if step["free"] < spare:
            yield self.finding(
                "PREEMPT-002", f"{spare} blocks free: victims give back all", f"{step['free']}"
            )


WAITING = ("waiting", "preempted")


def _plan(step: dict[str, Any]) -> str:
    return ", ".join(f"{rid}: [{lo}, {hi})" for rid, lo, hi, _ in step["rows"]) or "an empty plan"

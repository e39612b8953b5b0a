"""Runs a history on a scheduler, as the model: writes what each step computes, feeds what it samples."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvproof.contract import ContractError, UnknownSequence
from kvproof.histories.play import POISON, next_token
from kvproof.records import UNWRITTEN, Case, Observation, Operation
from kvproof.subjects.drive import Clock, Nonsense, describe, integer, integers, outcome_of, pairs_of
from kvproof.subjects.memory import HarnessMemory

EMPTY_STEPS = 4
"""A drain gives up after so many empty plans in a row."""


@dataclass
class Request:
    """What the driver knows of a request: all its tokens, and whether it still counts."""

    tokens: list[int]
    prompt: int
    max_new: int
    open: bool = True

    @property
    def wanted(self) -> int:
        return self.prompt + self.max_new


@dataclass
class SchedulerDriver:
    """One scheduler, the KV memory of its pool, and the requests."""

    scheduler: Any
    block_size: int
    clock: Clock
    requests: dict[int, Request] = field(default_factory=dict)
    serial: int = 0
    index: int = 0
    reading: bool = False
    """The model samples by what is read through the table, not by what it should be (META-001)."""
    written: dict[int, int] = field(default_factory=dict)
    """Serial of a write -> the token whose KV it is."""

    def __post_init__(self) -> None:
        self.capabilities = frozenset(self.scheduler.capabilities)
        self.memory = HarnessMemory(self.block_size)

    def timed(self) -> contextlib.AbstractContextManager[None]:
        """Around calls of the subject: each step has the time limit of a call."""
        return self.clock(self.index)

    def apply(self, index: int, op: Operation) -> Observation:
        """Call the subject and write down what was seen."""
        self.index = index
        steps: list[dict[str, Any]] = []
        outcome, detail = "ok", ""
        try:
            self._call(op, steps)
        except ContractError as error:
            outcome, detail = outcome_of(error), str(error)
        except KeyError as error:
            detail = describe(error)
            outcome = UnknownSequence.__name__ if (op.args or {}).get("unknown") else "error"
        except (Exception, SystemExit) as error:
            outcome, detail = "error", str(error) if isinstance(error, Nonsense) else describe(error)
        free = None
        if outcome != "error":
            try:
                with self.timed():
                    free = integer(self.scheduler.free_blocks(), "free_blocks")
            except (Exception, SystemExit) as error:
                outcome, detail = "error", describe(error)
        return Observation.model_construct(outcome=outcome, detail=detail, free=free, value=steps)

    def _call(self, op: Operation, steps: list[dict[str, Any]]) -> None:
        args = op.args or {}
        self.reading = args.get("model") == "reads"
        if op.op == "submit":
            tokens, max_new = list(op.tokens or ()), int(args.get("max_new", 1))
            with self.timed():
                self.scheduler.submit(op.seq, tokens, max_new, int(args.get("priority", 0)))
            self.requests[op.seq] = Request(tokens, len(tokens), max_new)
        elif op.op == "abort":
            with self.timed():
                self.scheduler.abort(op.seq)
            self._close(op.seq)
        elif op.op == "step":
            for _ in range(op.length or 1):
                self._step(steps, args.get("abort_between"))
        else:
            self._drain(steps)

    def _close(self, rid: Any) -> None:
        if rid in self.requests:
            self.requests[rid].open = False

    # ------------------------------------------------------------ steps

    def _step(self, steps: list[dict[str, Any]], abort_between: int | None = None) -> None:
        """Plan, compute, feed. `abort_between`: abort this request between plan and feed."""
        step: dict[str, Any] = {
            "rows": [],
            "preempted": [],
            "copies": [],
            "rejected": [],
            "reads": {},
            "writes": [],
        }
        steps.append(step)
        with self.timed():
            self._plan_and_feed(step, abort_between)

    def _plan_and_feed(self, step: dict[str, Any], abort_between: int | None) -> None:
        rows = [self._row(row) for row in self.scheduler.plan()]
        step["rows"] = rows
        step["preempted"] = list(integers(self.scheduler.preempted(), "preempted"))
        if "copies" in self.capabilities:
            step["copies"] = pairs_of(self.scheduler.copies())
            self.memory.copy(step["copies"])
        for rid, lo, hi, table in rows:
            self._compute(step, rid, lo, hi, table)
        for rid, _, hi, table in rows:
            step["reads"][rid] = [self._read(table, p) for p in range(min(hi, len(table) * self.block_size))]
        if abort_between is not None:
            self.scheduler.abort(abort_between)
            self._close(abort_between)
            step["aborted"] = abort_between
        step["fed"] = [self._sample(rid, hi, step["reads"][rid]) for rid, _, hi, _ in rows]
        step["finished"] = list(integers(self.scheduler.feed(step["fed"]), "feed"))
        for rid in step["finished"]:
            self._close(rid)
        if "output" in self.capabilities:
            step["outputs"] = {
                rid: list(integers(self.scheduler.output(rid), f"output({rid})")) for rid in step["finished"]
            }
        if "rejected" in self.capabilities:
            step["rejected"] = [[integer(r, "rejected"), str(why)] for r, why in self.scheduler.rejected()]
            for rid, _ in step["rejected"]:
                self._close(rid)
        step["free"] = integer(self.scheduler.free_blocks(), "free_blocks")

    def _drain(self, steps: list[dict[str, Any]]) -> None:
        """Steps until nothing is left, or nothing goes on, or the bound is reached."""
        work = sum(r.wanted for r in self.requests.values() if r.open)
        bound = 50 + 8 * work
        empty = 0
        while len(steps) < bound and empty < EMPTY_STEPS:
            with self.timed():
                busy = self.scheduler.has_work()
            if not busy and not any(r.open for r in self.requests.values()):
                return
            self._step(steps)
            empty = 0 if steps[-1]["rows"] else empty + 1

    def _row(self, row: Any) -> list[Any]:
        try:
            rid, lo, hi, table = row
        except (TypeError, ValueError):
            raise Nonsense(f"plan returned a row {row!r:.80}; (rid, lo, hi, table) is needed") from None
        return [operator.index(rid), operator.index(lo), operator.index(hi), list(integers(table, "plan"))]

    def _compute(self, step: dict[str, Any], rid: int, lo: int, hi: int, table: list[int]) -> None:
        for position in range(max(lo, 0), min(hi, len(table) * self.block_size)):
            block, offset = table[position // self.block_size], position % self.block_size
            self.serial += 1
            self.memory.write(block, offset, self.serial)
            if rid in self.requests and position < len(self.requests[rid].tokens):
                self.written[self.serial] = self.requests[rid].tokens[position]
            step["writes"].append([self.serial, block, offset, rid, position])

    def _read(self, table: list[int], position: int) -> int:
        block = table[position // self.block_size]
        return self.memory.read(block, position % self.block_size) if block >= 0 else UNWRITTEN

    def _sample(self, rid: int, hi: int, read: list[int]) -> int:
        """The token for a row: the model's next, or poison for a row that samples nothing."""
        request = self.requests.get(rid)
        if request is None or hi != len(request.tokens) or not request.open:
            return POISON
        context = [self.written.get(serial, UNWRITTEN) for serial in read] if self.reading else request.tokens
        token = next_token(context)
        request.tokens.append(token)
        return token


def drive_scheduler(scheduler: Any, case: Case, clock: Clock) -> Iterator[Observation]:
    """Observations of a scheduler's history, in order; stops after an `error`."""
    driver = SchedulerDriver(scheduler, case.block_size, clock)
    for index, op in enumerate(case.history):
        seen = driver.apply(index, op)
        yield seen
        if seen.outcome == "error":
            return

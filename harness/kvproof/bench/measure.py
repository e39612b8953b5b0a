"""Times one point of the matrix on several subjects, rounds interleaved, every round checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol, runtime_checkable

from kvproof.bench.cells import CELLS
from kvproof.bench.clock import calibrate, quiet
from kvproof.bench.matrix import Point
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.bench.work import MAX_ROUNDS, Work
from kvproof.records import Sample
from kvproof.report.attention import MORE
from kvproof.stats import quantiles, ratio_interval, slope

WARM_UP = 2
MIN_ROUNDS = 5
BURST = 4
"""Rounds that a lane takes at its turn."""
MOST_TIMED = (MAX_ROUNDS - WARM_UP) * BURST // (BURST + 1)
"""Cells are made for MAX_ROUNDS, those that are not timed included."""
LONGEST_CELL_S = 20.0
"""A size whose least number of rounds would take longer is left out, with a note."""

Pedantic = Callable[..., Any]
"""`benchmark.pedantic` of pytest-benchmark."""


@runtime_checkable
class Timed(Protocol):
    """What the in-process pytest run drives: each of its points is one benchmark."""

    points: Sequence[Any]

    def measure(self, point: Any, pedantic: Pedantic) -> None:
        """Measure one point; its rounds are those of one call of `pedantic`."""
        ...


@dataclass
class Lane:
    """One subject within a cell."""

    subject: Subject
    work: Work | None = None
    call: Callable[[], Any] | None = None
    result: Any = None
    rounds: int = 0
    seconds: list[float] = field(default_factory=list)
    note: str = ""
    inside: list[float] = field(default_factory=list)
    """Seconds of each round on the clock of a program in another process."""

    def step(self) -> float:
        """Run one round outside the measurement and prepare the next; seconds it took in all."""
        start = time.perf_counter()
        self.finish(self.once())
        self.inside.clear()
        return time.perf_counter() - start

    def once(self) -> Any:
        """The result of one round."""
        assert self.call is not None
        if self.subject.timed is None:
            return self.call()
        result, seconds = self.subject.timed(self.call)
        self.inside.append(seconds)
        return result

    def finish(self, result: Any) -> None:
        """Hand the cell its result, which checks it, and take the next call."""
        assert self.work is not None
        self.call = self.work.rounds.send(result)


@dataclass
class Job:
    """The plan of a run: what is measured on whom, and what came of it."""

    subjects: Sequence[Subject]
    points: Sequence[Point]
    budget_s: float
    """For the rounds of one subject in one cell, set-up of the rounds included."""
    emit: Callable[[Sample], None]
    """Takes each sample as soon as there is one."""
    started: Callable[[Point], None] = lambda _: None
    """Told each point before it is measured."""
    costs: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    """(subject, cell and other parameters) -> tokens -> seconds of a round."""
    turn: int = 0
    patience: float = 1.0
    """So many times LONGEST_CELL_S may the least number of rounds take."""
    behind: Sequence[float] = ()
    """Seconds of each round behind the sample that is emitted."""

    def measure(self, point: Point, pedantic: Pedantic) -> None:
        """Measure one point; emits a sample for each subject, also when there is no number."""
        self.started(point)
        self.turn += 1
        lanes = [Lane(s) for s in self.subjects]
        before = calibrate()
        for lane in lanes:
            self._set_up(lane, point)
        running = [lane for lane in lanes if lane.call is not None]
        if running:
            with quiet():
                self._run(running, pedantic)
        cal = (before + calibrate()) / 2
        first = next((x for x in lanes[:1] if not x.note and x.seconds), None)
        for lane in lanes:
            self.behind = lane.seconds
            self.emit(_sample(lane, point, cal, first))
            if lane.work is not None:
                lane.work.rounds.close()

    def _set_up(self, lane: Lane, point: Point) -> None:
        """Make the cell, warm it up, and decide how many rounds its budget allows."""
        others = {k: v for k, v in point.parameters.items() if k != "tokens"}
        costs = self.costs.setdefault((lane.subject.name, f"{point.cell}{others}"), {})
        tokens = point.parameters.get("tokens")
        try:
            ahead = 0.0 if tokens is None else predict(costs, tokens) * (WARM_UP + MIN_ROUNDS)
            if ahead > LONGEST_CELL_S * self.patience:
                raise Unsupported(
                    f"left out: a round of {max(costs)} tokens took {costs[max(costs)]:.3g} s, "
                    f"{MIN_ROUNDS} rounds of {tokens} would take more than "
                    f"{LONGEST_CELL_S * self.patience:g} s; {MORE} {ceil(ahead / LONGEST_CELL_S)} times them"
                )
            lane.work = CELLS[point.cell](lane.subject, **point.parameters)
            lane.call = next(lane.work.rounds)
            took = [lane.step() for _ in range(WARM_UP)]
            if tokens is not None:
                costs[tokens] = min(took)
            lane.rounds = max(MIN_ROUNDS, min(MOST_TIMED, int(self.budget_s / min(took))))
        except Unsupported as e:
            lane.call, lane.note = None, f"unsupported: {e}"
        except Wrong as e:
            lane.call, lane.note = None, f"INVALID: {e}"
        except Exception as e:
            lane.call, lane.note = None, f"INVALID: {type(e).__name__}: {e}"

    def _run(self, lanes: list[Lane], pedantic: Pedantic) -> None:
        """One pedantic benchmark for all lanes: its rounds go round them, in rotated order.

        A lane takes a burst of rounds at its turn, behind one that is not timed: the lane before it
        has left the caches to its own code and data.
        """
        order: list[Lane] = []
        for n in range(0, max(lane.rounds for lane in lanes), BURST):
            at = (n // BURST + self.turn) % len(lanes)
            for lane in lanes[at:] + lanes[:at]:
                order += [lane] * min(BURST, max(0, lane.rounds - n))
        waiting = iter(zip(order, [None, *order], strict=False))

        def setup() -> tuple[tuple[Lane], dict[str, Any]]:
            lane, last = next(waiting)
            if lane is not last and lane.call is not None and len(lanes) > 1:
                timed(lane)
                check(lane)
                del lane.inside[-1:]
            return (lane,), {}

        def timed(lane: Lane) -> None:
            if lane.call is not None:
                try:
                    lane.result = lane.once()
                except Exception as e:
                    lane.call, lane.note = None, f"INVALID: {type(e).__name__}: {e}"

        def check(lane: Lane) -> None:
            if lane.call is not None:
                try:
                    lane.finish(lane.result)
                except Wrong as e:
                    lane.call, lane.note = None, f"INVALID: {e}"
                except Exception as e:
                    lane.call, lane.note = None, f"INVALID: {type(e).__name__}: {e}"

        rounds: list[float] = pedantic(timed, setup=setup, teardown=check, rounds=len(order))
        for lane, seconds in zip(order, rounds, strict=True):
            lane.seconds.append(seconds)
        for lane in lanes:
            if lane.inside:
                lane.seconds = lane.inside


def predict(costs: dict[int, float], tokens: int) -> float:
    """Seconds of a round of `tokens`, drawn on from the two largest sizes below it; 0 if unknown."""
    sizes = sorted(n for n in costs if n < tokens)
    if not sizes:
        return 0.0
    last = sizes[-1]
    growth = 1.0
    if len(sizes) > 1 and costs[sizes[-2]] < costs[last]:
        growth = max(1.0, slope(sizes[-2:], [costs[n] for n in sizes[-2:]]))
    return float(costs[last] * (tokens / last) ** growth)


def _sample(lane: Lane, point: Point, cal: float, first: Lane | None) -> Sample:
    unit, per = (lane.work.unit, lane.work.per) if lane.work else ("ns", 1)
    if lane.note or not lane.seconds:
        return empty(lane.subject.name, point, unit, lane.note)
    low, median, high = quantiles([s * 1e9 / per for s in lane.seconds])
    counters = {"round_us": median * per / 1e3}
    if first is not None and first is not lane:
        ratio, ratio_low, ratio_high = ratio_interval(lane.seconds, first.seconds)
        counters |= {"ratio": ratio, "ratio_low": ratio_low, "ratio_high": ratio_high}
    return Sample(
        implementation=lane.subject.name,
        cell=point.cell,
        parameters=point.parameters,
        unit=unit,
        median=median,
        low=low,
        high=high,
        rounds=len(lane.seconds),
        cal=cal,
        per_cal=median / cal,
        counters=counters,
    )


def empty(name: str, point: Point, unit: str, note: str) -> Sample:
    """The sample of a cell without a number: unsupported, or INVALID."""
    return Sample(
        implementation=name,
        cell=point.cell,
        parameters=point.parameters,
        unit=unit,
        median=0.0,
        low=0.0,
        high=0.0,
        rounds=0,
        note=note,
    )

"""Times one point of the matrix on several subjects, rounds interleaved, every round checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol, runtime_checkable

from kvproof.bench.cells import CELLS
from kvproof.bench.clock import calibrate, interrupted, quiet, waited
from kvproof.bench.counted import differ
from kvproof.bench.matrix import Point
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.bench.warm import LEAST_WARM, MOST_WARM, warm
from kvproof.bench.work import MAX_ROUNDS, Work
from kvproof.records import Sample
from kvproof.report.patience import MORE
from kvproof.stats import median, quantiles, ratio_interval, slope

MIN_ROUNDS, SLOW_ROUNDS = 5, 3
"""The second of a cell whose rounds are longer than its budget."""
BURST = 4
"""Rounds that a lane takes at its turn."""
MOST_TIMED = (MAX_ROUNDS - MOST_WARM) * BURST // (BURST + 1)
"""Of one set-up: cells are made for MAX_ROUNDS, those that are not timed included."""
SET_UPS = 10
"""So often is a cell of short rounds set up at most, so that its budget is used."""
BURST_CALIBRATION = 3
"""Runs of the calibration loop before a burst."""
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
    broken_in: list[bool] = field(default_factory=list)
    """Of each round: whether the machine took the processor away within it."""
    waits: list[float] = field(default_factory=list)
    """Of each round: seconds within it in which this thread had no processor, though it could have run."""
    cals: list[float] = field(default_factory=list)
    """Turns of the calibration loop before each burst, ns."""
    warmed: int = 0
    """Rounds of the warm-up."""
    ran: int = 0
    """Rounds since the cell was set up, those that are not timed included."""
    counted: dict[str, float] = field(default_factory=dict)
    """Exact counters of the cell's first round, the same in every set-up."""

    def open(self, point: Point) -> float:
        """Set the cell up, anew if it has been; seconds that took."""
        start = time.perf_counter()
        self.leave()
        self.work = CELLS[point.cell](self.subject, **point.parameters)
        self.call, self.ran = next(self.work.rounds), 0
        return time.perf_counter() - start

    def leave(self) -> None:
        """End the set-up, if there is one: what was kept of its rounds is checked, and what it counted.

        Raises:
            Wrong: a check has failed. What the subject raises in a check is passed on.
        """
        if self.work is None or self.call is None:
            return
        self.call = None
        self.work.rounds.close()
        self.work.recheck()
        if (
            self.subject.exact
            and self.counted
            and (said := differ(self.counted, self.work.counted, "set-ups"))
        ):
            raise Wrong(said)
        self.counted = self.work.counted

    def step(self) -> tuple[float, float]:
        """Run one round outside the measurement and prepare the next; seconds of the call, and in all."""
        start = time.perf_counter()
        result = self.once()
        called = self.inside.pop() if self.inside else time.perf_counter() - start
        self.finish(result)
        return called, time.perf_counter() - start

    def kept(self) -> list[float]:
        """Seconds of the rounds that count: those the machine broke into are left out if enough remain."""
        return [self.seconds[n] for n in self._whole()]

    def waited(self) -> float:
        """Share of such a round, the median of them, for which the machine had its processor."""
        if len(self.waits) != len(self.seconds):
            return 0.0
        return median([min(self.waits[n] / max(self.seconds[n], 1e-9), 1.0) for n in self._whole()])

    def _whole(self) -> Sequence[int]:
        if len(self.broken_in) != len(self.seconds):
            return range(len(self.seconds))
        whole = [n for n, broken in enumerate(self.broken_in) if not broken]
        return whole if len(whole) >= SLOW_ROUNDS else range(len(self.seconds))

    def once(self) -> Any:
        """The result of one round."""
        assert self.call is not None
        self.ran += 1
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
                self._run(running, point, pedantic)
        after = calibrate()
        for lane in running:
            try:
                lane.leave()
            except Exception as e:
                lane.note = _why(e)
        first = next((x for x in lanes[:1] if not x.note and x.seconds), None)
        for lane in lanes:
            self.behind = lane.kept()
            self.emit(_sample(lane, point, median([before, *lane.cals, after]), first))
            if lane.work is not None:
                lane.work.rounds.close()

    def _set_up(self, lane: Lane, point: Point) -> None:
        """Make the cell, warm it up, and decide how many rounds its budget allows."""
        others = {k: v for k, v in point.parameters.items() if k != "tokens"}
        costs = self.costs.setdefault((lane.subject.name, f"{point.cell}{others}"), {})
        tokens = point.parameters.get("tokens")
        try:
            ahead = 0.0 if tokens is None else predict(costs, tokens) * (LEAST_WARM + MIN_ROUNDS)
            if ahead > LONGEST_CELL_S * self.patience:
                raise Unsupported(
                    f"left out: a round of {max(costs)} tokens took {costs[max(costs)]:.3g} s, "
                    f"{MIN_ROUNDS} rounds of {tokens} would take more than "
                    f"{LONGEST_CELL_S * self.patience:g} s; {MORE} {ceil(ahead / LONGEST_CELL_S)} times them"
                )
            opened = lane.open(point)
            lane.warmed, took = warm(lane.step, self.budget_s)
            if tokens is not None:
                costs[tokens] = took
            rounds = int(self.budget_s / took)
            if rounds > MOST_TIMED:  # more of them need another set-up
                rounds = max(MOST_TIMED, int(self.budget_s / (took + opened / MOST_TIMED)))
            least = MIN_ROUNDS if rounds else SLOW_ROUNDS
            lane.rounds = max(least, min(MOST_TIMED * SET_UPS, rounds))
        except Exception as e:
            lane.call, lane.note = None, _why(e)

    def _run(self, lanes: list[Lane], point: Point, pedantic: Pedantic) -> None:
        """One pedantic benchmark for all lanes: its rounds go round them, in rotated order.

        A lane takes a burst of rounds at its turn, behind a look at the machine's speed and one round that
        is not timed: whatever ran before it has left the caches to its own code and data.
        """
        order: list[Lane] = []
        opening: list[int] = []
        for n in range(0, max(lane.rounds for lane in lanes), BURST):
            at = (n // BURST + self.turn) % len(lanes)
            for lane in lanes[at:] + lanes[:at]:
                size = min(BURST, max(0, lane.rounds - n))
                order += [lane] * size
                opening += [size, *[0] * (size - 1)][:size]
        waiting = iter(zip(order, opening, strict=True))
        seen, stood = 0, 0.0

        def setup() -> tuple[tuple[Lane], dict[str, Any]]:
            nonlocal seen, stood
            lane, opens = next(waiting)
            if opens and lane.call is not None and lane.ran + opens + 1 > MAX_ROUNDS:
                again(lane)
            if opens and lane.call is not None:
                lane.cals.append(calibrate(BURST_CALIBRATION))
                timed(lane)
                check(lane)
                del lane.inside[-1:], lane.broken_in[-1:], lane.waits[-1:]
            stood, seen = waited(), interrupted()
            return (lane,), {}

        def again(lane: Lane) -> None:
            try:
                lane.open(point)
                for _ in range(LEAST_WARM):
                    lane.step()
            except Exception as e:
                lane.call, lane.note = None, _why(e)

        def timed(lane: Lane) -> None:
            if lane.call is not None:
                try:
                    lane.result = lane.once()
                except Exception as e:
                    lane.call, lane.note = None, _why(e)

        def check(lane: Lane) -> None:
            lane.broken_in.append(interrupted() > seen)
            lane.waits.append(waited() - stood)
            if lane.call is not None:
                try:
                    lane.finish(lane.result)
                except Exception as e:
                    lane.call, lane.note = None, _why(e)

        rounds: list[float] = pedantic(timed, setup=setup, teardown=check, rounds=len(order))
        for lane, seconds in zip(order, rounds, strict=True):
            lane.seconds.append(seconds)
        for lane in lanes:
            if lane.inside:  # its own clock, and its own thread
                lane.seconds, lane.broken_in, lane.waits = lane.inside, [], []


def _why(error: Exception) -> str:
    """The note of a lane that has no number because of this."""
    if isinstance(error, Unsupported):
        return f"unsupported: {error}"
    return f"INVALID: {error}" if isinstance(error, Wrong) else f"INVALID: {type(error).__name__}: {error}"


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
    kept = lane.kept()
    if min(kept) <= 0:
        return empty(
            lane.subject.name, point, unit, f"INVALID: a round took {min(kept) * 1e9:g} ns by its clock"
        )
    low, middle, high = quantiles([s * 1e9 / per for s in kept])
    counters = {"round_us": middle * per / 1e3, "warm_up": float(lane.warmed)}
    counters |= {"left_out": float(len(lane.seconds) - len(kept)), "waited": lane.waited()}
    counters |= lane.counted
    if first is not None and first is not lane:
        ratio, ratio_low, ratio_high = ratio_interval(kept, first.kept())
        counters |= {"ratio": ratio, "ratio_low": ratio_low, "ratio_high": ratio_high}
    return Sample(
        implementation=lane.subject.name,
        cell=point.cell,
        parameters=point.parameters,
        unit=unit,
        median=middle,
        low=low,
        high=high,
        rounds=len(kept),
        cal=cal,
        per_cal=middle / cal,
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

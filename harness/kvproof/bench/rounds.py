"""The timed cells in several rounds, each a fresh process of each implementation."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvproof.bench import calm, child
from kvproof.bench.matrix import STEPPED, Point
from kvproof.bench.measure import empty
from kvproof.bench.merged import apart, merge, unequal
from kvproof.bench.subject import Subject
from kvproof.comparing import compare
from kvproof.records import Sample
from kvproof.stats import median

DRIFT = 0.05
"""A run that measures equal things further apart than this in half of its cells is void: its processes then
differ by 10 % and more, among which nothing is found (5 processes a side, one standard deviation)."""
UNIT = {False: "ns", True: "us/step"}
"""Of a point without a number, by whether it is one of ranks."""


LONGEST_S = 60.0
"""For each cell of a process, and for its start: one that takes longer hangs, and is ended."""
MORE = 4
"""Rounds that are added at most, for the cells that need them."""


@dataclass(frozen=True)
class Shape:
    """How a run in rounds is made.

    processes: of each implementation, as many as count.
    budget_s: for the rounds of one cell in one process.
    patience: as in `Job`.
    """

    processes: int
    budget_s: float
    patience: float = 1.0


@dataclass
class Lane:
    """One implementation, or the first of them a second time, with what its processes found.

    seconds: for each point, of each round of each process.
    speed: of the quiet machine, once all has run: ns of a turn of the calibration loop.
    """

    subject: Subject
    samples: list[list[Sample]] = field(default_factory=list)
    seconds: list[list[list[float]]] = field(default_factory=list)
    speed: float = float("inf")

    def cals(self, n: int) -> list[float]:
        """Of each process at point `n`; empty where one has no number."""
        found = [s.cal for s in self.samples[n] if s.rounds and s.cal]
        return found if len(found) == len(self.samples[n]) else []

    def loads(self, n: int) -> list[float]:
        """The same, by which it is chosen which processes count."""
        waits = [s.counters.get("waited", 0.0) for s in self.samples[n]]
        return [calm.load(cal, share) for cal, share in zip(self.cals(n), waits, strict=False)]

    def wanting(self, n: int, least: int) -> bool:
        """Whether point `n` needs another process."""
        cals = self.cals(n)
        times = [s.median / cal for s, cal in zip(self.samples[n], cals, strict=False)]
        return bool(cals) and calm.wanting(times, self.loads(n), least, self.speed)

    def choose(self, n: int, least: int) -> int:
        """Leave only those processes at point `n` that count; how many are left out."""
        cals = self.loads(n)
        kept = calm.chosen(cals, least, self.speed) if cals else range(len(self.samples[n]))
        out = len(self.samples[n]) - len(kept)
        self.samples[n] = [self.samples[n][i] for i in kept]
        self.seconds[n] = [self.seconds[n][i] for i in kept] if cals else self.seconds[n]
        return out


def measure(
    subjects: Sequence[Subject],
    points: Sequence[Point],
    shape: Shape,
    emit: Callable[[Sample], None],
    tell: Callable[[object], None],
) -> list[str]:
    """Measure points in rounds; the order of the implementations is rotated from round to round.

    The first implementation has a second process in each round: how far these two are apart is the floor of
    a cell. A few rounds more follow, of the cells that were disturbed or have not settled (`calm`); what
    stays disturbed is left out and counted. What has been found is emitted also if the run is broken off.

    Returns:
        What failed outside the implementations.
    """
    lanes = [Lane(s, [[] for _ in points], [[] for _ in points]) for s in (*subjects, subjects[0])]
    faults: list[str] = []
    try:
        for turn in range(shape.processes):
            at = turn % len(lanes)
            for lane in lanes[at:] + lanes[:at]:
                tell(f"{lane.subject.name}, process {turn + 1} of {shape.processes}")
                faults += _process(lane, points, range(len(points)), shape, turn)
        for turn in range(shape.processes, shape.processes + MORE * (shape.processes > 1)):
            _calibrate(lanes, len(points))
            for lane in lanes:
                some = [n for n in range(len(points)) if lane.wanting(n, shape.processes)]
                if some:
                    tell(f"{lane.subject.name}, process {turn + 1}, {len(some)} cells again")
                    faults += _process(lane, points, some, shape, turn)
    finally:
        _calibrate(lanes, len(points))
        for n, point in enumerate(points):
            for sample in _point(lanes, n, point, shape.processes):
                emit(sample)
    return list(dict.fromkeys(faults))


def _calibrate(lanes: Sequence[Lane], points: int) -> None:
    """Tell all lanes how fast the quiet machine is, by all calibrations so far."""
    cals = [cal for lane in lanes for n in range(points) for cal in lane.cals(n)]
    for lane in lanes:
        lane.speed = calm.quiet(cals) if cals else lane.speed


def void(samples: Sequence[Sample]) -> str:
    """Why the times of a run do not count; empty if they do."""
    floors = [s.floor for s in samples if s.floor is not None]
    if not floors or median(floors) <= DRIFT:
        return ""
    return (
        f"equal implementations were measured {median(floors):.1%} apart in half of the cells, allowed are "
        f"{DRIFT:.0%}: this machine was too busy for its times to count"
    )


def _process(lane: Lane, points: Sequence[Point], some: Sequence[int], shape: Shape, turn: int) -> list[str]:
    """One round of one lane at some of the points; returns what failed outside the implementation.

    Hashes of strings are seeded by the number of the round, so all lanes meet the same ones.
    """
    subject = lane.subject
    if not subject.spec:
        for n in some:
            note = "unsupported: cannot be opened in another process"
            lane.samples[n].append(_empty(lane, points[n], note))
        return []
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "samples"
        order = {"spec": subject.spec, "block_size": subject.block_size, "into": str(into)}
        order |= {"budget_s": shape.budget_s, "patience": shape.patience}
        order |= {"points": [asdict(points[n]) for n in some]}
        longest = LONGEST_S * shape.patience * (1 + len(some))
        status, said = child.run("kvproof.bench.round_child", order, turn, longest)
        lines = into.read_text(encoding="utf-8").splitlines() if into.is_file() else []
    for at, n in enumerate(some):
        if at < len(lines):
            found = json.loads(lines[at])
            sample = Sample.model_validate(found["sample"]).model_copy(
                update={"implementation": subject.name}
            )
            lane.samples[n].append(sample)
            lane.seconds[n].append(found["seconds"])
        else:
            why = f"INVALID: its process {status}: {said[-1] if said else 'no word'}"
            lane.samples[n].append(_empty(lane, points[n], why))
    return said if status == child.FAILED and len(lines) == len(some) else []


def _empty(lane: Lane, point: Point, note: str) -> Sample:
    return empty(lane.subject.name, point, UNIT[point.cell in STEPPED], note)


def _point(lanes: Sequence[Lane], n: int, point: Point, least: int) -> list[Sample]:
    """What each implementation, the control left out, came to at one point."""
    for lane in lanes:  # before any process is left out: the machine does not change a count
        if lane.subject.exact and (said := unequal(lane.samples[n])):
            lane.samples[n] = [_empty(lane, point, f"INVALID: {said}")]
        if said := calm.slowed([s.counters["loop"] for s in lane.samples[n] if "loop" in s.counters]):
            lane.samples[n] = [_empty(lane, point, f"INVALID: {said}")]
    disturbed = [lane.choose(n, least) for lane in lanes]
    merged = [merge(lane.subject.name, point, UNIT[point.cell in STEPPED], lane.samples[n]) for lane in lanes]
    *own, control = [_times(lane, n) if s.rounds else [] for lane, s in zip(lanes, merged, strict=True)]
    floor = apart(own[0], control)
    found = []
    for sample, times, out in zip(merged[:-1], own, disturbed[:-1], strict=True):
        more = dict(sample.counters) | ({"disturbed": float(out)} if sample.rounds else {})
        if times is not own[0] and times and own[0]:
            c = compare(own[0], times, floor=floor or 0.0)
            more |= {"ratio": c.ratio, "ratio_low": c.low, "ratio_high": c.high}
        update = {"counters": more, "floor": floor if sample.rounds else None}
        found.append(sample.model_copy(update=update))
    return found


def _times(lane: Lane, n: int) -> list[list[float]]:
    """Of each process its rounds, in turns of the calibration loop around them."""
    both = zip(lane.samples[n], lane.seconds[n], strict=True)
    return [[x * 1e9 / s.cal for x in seconds] for s, seconds in both if s.cal]

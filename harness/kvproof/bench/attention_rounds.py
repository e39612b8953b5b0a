"""The attention matrix in several fresh processes, each with all kernels and the first of them twice."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvproof.bench import child
from kvproof.bench.kernels import KernelSubject
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.merged import apart, merge, times
from kvproof.records import Sample
from kvproof.stats import median_interval

LONGEST_S = 3600.0
"""A process that takes longer hangs, and is ended."""
CONTROL = "control"
"""The first kernel a second time."""
UNIT = "us/step"
FASTEST = "fastest_gbps"
"""Counter of a process: the fastest that it read memory."""
RATIOS = ("ratio", "ratio_folded")
"""Counters with an interval."""


@dataclass(frozen=True)
class Shape:
    """How a run is made; what is not said here is as in `AttentionJob`."""

    processes: int
    budget_s: float
    device: str = "cpu"
    seed: int = 0
    patience: float = 1.0


@dataclass
class Lane:
    """One implementation or control at one point: a sample a process, and seconds of the rounds of each."""

    name: str
    point: Point
    samples: list[Sample] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)

    def times(self) -> list[list[float]]:
        """Of each process its rounds, as they are compared; none if one of them has no number."""
        return times(self.samples, self.seconds) if all(s.rounds for s in self.samples) else []


def measure(
    kernels: Sequence[KernelSubject],
    points: Sequence[Point],
    shape: Shape,
    emit: Callable[[Sample], None],
    tell: Callable[[object], None],
) -> list[str]:
    """Measure the points in each of several processes, one after another.

    What has no number in a process has none, and the processes after it leave it out; only the first decides
    what is too slow. How far the first kernel and itself are apart at a point is the floor of the point. What
    whole processes have found is emitted also if the run is broken off.

    Returns:
        What failed outside the kernels.
    """
    able = [k for k in kernels if k.spec]
    names = [*(k.name for k in able), *([CONTROL] if able else [])]
    lanes: dict[str, Lane] = {}
    faults: list[str] = []
    try:
        for turn in range(shape.processes if able else 0):
            tell(f"attention, process {turn + 1} of {shape.processes}")
            faults += _process(able, points, lanes, shape, turn)
    finally:
        for point, name in itertools.product(points, names):  # what was not begun says so
            lanes.setdefault(_key(name, point), Lane(name, point))
        for sample in _found(lanes, names):
            emit(sample)
        for k, point in itertools.product([k for k in kernels if not k.spec], points):
            emit(empty(k.name, point, UNIT, "unsupported: cannot be opened in another process"))
    return list(dict.fromkeys(faults))


def _key(name: str, point: Point) -> str:
    return f"{name}, {point}"


def _process(
    kernels: Sequence[KernelSubject],
    points: Sequence[Point],
    lanes: dict[str, Lane],
    shape: Shape,
    turn: int,
) -> list[str]:
    """One process, whose samples the lanes get; returns what failed outside the kernels."""
    known = {key: s.note for key, lane in lanes.items() for s in lane.samples if not s.rounds}
    job = {
        "budget_s": shape.budget_s,
        "device": shape.device,
        "seed": shape.seed,
        "turn": turn,
        "patience": math.inf if turn else shape.patience,
        "processes": shape.processes,
        "notes": known,
    }
    order = {"job": job, "points": [asdict(p) for p in points]}
    order |= {"kernels": [*((k.name, k.spec) for k in kernels), (CONTROL, kernels[0].spec)]}
    lines, status, said = _child(order, turn)
    for found in lines:
        sample = Sample.model_validate(found["sample"])
        point = Point(sample.cell, sample.parameters)
        lane = lanes.setdefault(_key(sample.implementation, point), Lane(sample.implementation, point))
        lane.samples.append(sample)
        lane.seconds.append(found["seconds"])
    for point, name in itertools.product(points, (*(k.name for k in kernels), CONTROL)):
        lanes.setdefault(_key(name, point), Lane(name, point))
    why = "unsupported: left out in one of its processes"
    if status:
        why = f"INVALID: its process {status}: {said[-1] if said else 'no word'}"
    lacking = [lane for lane in lanes.values() if len(lane.samples) <= turn]
    for lane in lacking:
        lane.samples.append(empty(lane.name, lane.point, UNIT, why))
        lane.seconds.append([])
    return said if status == child.FAILED and not lacking else []


def _child(order: dict[str, Any], turn: int) -> tuple[list[dict[str, Any]], str, list[str]]:
    """What a process has found, its exit status, and its last words."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "samples"
        status, said = child.run(
            "kvproof.bench.attention_child", order | {"into": str(into)}, turn, LONGEST_S
        )
        lines = into.read_text(encoding="utf-8").splitlines() if into.is_file() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # its process ended within it
            break
    return found, status, said


def _found(lanes: dict[str, Lane], names: Sequence[str]) -> list[Sample]:
    """What each lane, the control left out, came to; `names` are the first kernel's to CONTROL's."""
    fastest = max((s.counters.get(FASTEST, 0.0) for x in lanes.values() for s in x.samples), default=0.0)
    found = []
    for lane in lanes.values():
        if lane.name == CONTROL:
            continue
        sample = merge(lane.name, lane.point, UNIT, lane.samples)
        if sample.rounds and (said := too_fast(lane.samples, fastest)):
            sample = empty(lane.name, lane.point, UNIT, said)
        counters = {k: v for k, v in sample.counters.items() if k != FASTEST}
        for key in RATIOS if sample.rounds else ():
            if key in counters:
                interval = median_interval([s.counters[key] for s in lane.samples])
                counters |= dict(zip((key, f"{key}_low", f"{key}_high"), interval, strict=True))
        own, again = (lanes.get(_key(name, lane.point)) for name in (names[0], names[-1]))
        floor = apart(own.times(), again.times()) if own and again and sample.rounds else None
        found.append(sample.model_copy(update={"counters": counters, "floor": floor}))
    return found


def too_fast(samples: Sequence[Sample], fastest: float) -> str:
    """Why a time is not believed: below the fastest rate at which any of the processes read memory."""
    for s in samples if fastest else ():
        from kvproof.bench.roofline import SLACK  # brings torch, which managers do without

        if (rate := s.counters["gbps"]) > SLACK * fastest:
            us = s.median * rate / fastest
            return f"INVALID: {s.median:.3g} us, the bytes alone take {us:.3g} us as fast as memory was read"
    return ""

"""The cell `ranks_sync`: what a step costs over real processes, by number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.bench import rank_child
from kvproof.bench.clock import calibrate
from kvproof.bench.crew import Crew
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.ranks import Emit, grouped
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.records import Sample
from kvproof.stats import quantiles

UNIT = "us/step"


def measure_sync(subjects: Sequence[Subject], points: Sequence[Point], emit: Emit) -> None:
    """Steps seen by the driver; `alone_ratio` is to a group of one rank, which sends nothing."""
    groups = list(grouped(points))
    for s in subjects:
        if not s.rank_process:
            _left_out(s, points, "unsupported: no ranks as processes: no factory make_rank_process", emit)
            continue
        alone: dict[tuple[Any, ...], float] = {}
        left, why = list(groups), ""
        most = max(group[0].parameters["ranks"] for group in groups)
        try:
            with Crew(most, rank_child.timed, s.rank_process, s.block_size) as crew:
                while left:
                    for sample in _samples(crew, s, left[0]):
                        p = sample.parameters
                        key = p["sequences"], p["step"]
                        if p["ranks"] == 1:
                            alone[key] = sample.median
                        elif key in alone:
                            more = {"alone_ratio": sample.median / alone[key], "alone_us": alone[key]}
                            sample = sample.model_copy(update={"counters": more})
                        emit(sample)
                    del left[0]
        except Unsupported as e:
            why = str(e) if str(e).startswith("PRECONDITION") else f"unsupported: {e}"
        except Wrong as e:
            why = f"INVALID: {e}"
        _left_out(s, [point for group in left for point in group], why, emit)


def _samples(crew: Crew, s: Subject, group: Sequence[Point]) -> list[Sample]:
    p, settings = group[0].parameters, group[0].settings
    world, sequences = p["ranks"], p["sequences"]
    before = calibrate()
    for post in crew.posts[:world]:
        post.pipe.send((world, sequences, settings["blocks"], settings["rounds"]))
    found: dict[str, list[int]] = {}
    waiting = set(range(world))
    while waiting:
        for rank, said in crew.told(sorted(waiting)):
            if said is None:
                raise Wrong(f"the process of rank {rank} has ended")
            found |= said
            waiting.discard(rank)
    cal = (before + calibrate()) / 2
    return [_sample(s.name, point, found[point.parameters["step"]], cal) for point in group]


def _sample(name: str, point: Point, nanoseconds: Sequence[int], cal: float) -> Sample:
    low, median, high = quantiles([ns / 1e3 for ns in nanoseconds])
    return Sample(
        implementation=name,
        cell=point.cell,
        parameters=point.parameters,
        unit=UNIT,
        median=median,
        low=low,
        high=high,
        rounds=len(nanoseconds),
        cal=cal,
    )


def _left_out(s: Subject, points: Sequence[Point], why: str, emit: Emit) -> None:
    for point in points:
        emit(empty(s.name, point, UNIT, why))

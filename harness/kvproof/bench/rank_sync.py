"""The cell `ranks_sync`: what a step costs over real processes, by number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from kvproof.bench import rank_child
from kvproof.bench.crew import Crew
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.ranks import UNIT, grouped
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.records import Sample
from kvproof.stats import quantiles

Found: TypeAlias = tuple[Sample, list[float]]
"""Of one point, with the seconds of its rounds as the driver sees them."""


def steps_of_crew(s: Subject, points: Sequence[Point]) -> list[Found]:
    """Steps of one crew of fresh processes, which is every group of the points in turn; in their order."""
    if not s.rank_process:
        return _without(s, points, "unsupported: no ranks as processes: no factory make_rank_process")
    groups, found, why = list(grouped(points)), list[Found](), ""
    most = max(group[0].parameters["ranks"] for group in groups)
    try:
        with Crew(most, rank_child.timed, s.rank_process, s.block_size) as crew:
            for group in groups:
                found += _group(crew, s, group)
    except Unsupported as e:
        why = str(e) if str(e).startswith("PRECONDITION") else f"unsupported: {e}"
    except Wrong as e:
        why = f"INVALID: {e}"
    return found + _without(s, [point for group in groups for point in group][len(found) :], why)


def _group(crew: Crew, s: Subject, group: Sequence[Point]) -> list[Found]:
    p, settings = group[0].parameters, group[0].settings
    world, sequences = p["ranks"], p["sequences"]
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
    return [_found(s.name, point, found[point.parameters["step"]]) for point in group]


def _found(name: str, point: Point, nanoseconds: Sequence[int]) -> Found:
    """Not in turns of the calibration loop: processes that wait for each other are not what it does."""
    low, median, high = quantiles([ns / 1e3 for ns in nanoseconds])
    sample = Sample(
        implementation=name,
        cell=point.cell,
        parameters=point.parameters,
        unit=UNIT,
        median=median,
        low=low,
        high=high,
        rounds=len(nanoseconds),
    )
    return sample, [ns / 1e9 for ns in nanoseconds]


def _without(s: Subject, points: Sequence[Point], why: str) -> list[Found]:
    return [(empty(s.name, point, UNIT, why), []) for point in points]

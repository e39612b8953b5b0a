"""Steps over real processes in several crews, each of fresh processes, and the first implementation again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvproof.bench.matrix import Point
from kvproof.bench.merged import apart, merge, times
from kvproof.bench.rank_sync import Found, steps_of_crew
from kvproof.bench.ranks import UNIT, Emit, grouped
from kvproof.bench.subject import Subject
from kvproof.records import Sample


@dataclass
class Lane:
    """One implementation, or one of them a second time.

    crews: of each what it found, point by point.
    """

    subject: Subject
    crews: list[list[Found]] = field(default_factory=list)

    def samples(self, n: int) -> list[Sample]:
        return [crew[n][0] for crew in self.crews]

    def times(self, n: int) -> list[list[float]]:
        """Of each crew its rounds, as they are compared; none if one of them has no number."""
        samples = self.samples(n)
        return times(samples, [c[n][1] for c in self.crews]) if all(s.rounds for s in samples) else []


def shared(points: Sequence[Point], processes: int) -> list[Point]:
    """The points with their rounds, one at least, shared among so many processes."""
    return [
        replace(p, settings=p.settings | {"rounds": -(-p.settings["rounds"] // processes)}) for p in points
    ]


def measure_sync(
    subjects: Sequence[Subject],
    points: Sequence[Point],
    crews: int,
    emit: Emit,
    tell: Callable[[object], None] = lambda _: None,
    control: bool = True,
) -> None:
    """Steps seen by the driver; `alone_ratio` is to a group of one rank, which sends nothing.

    Each implementation has `crews`, in turns that begin with another one each time; where these are several,
    the first that has ranks as processes has as many more as a `control`, and how far the two are apart is
    the floor of a point. What whole crews have found is emitted also if the run is broken off.
    """
    points = [point for group in grouped(points) for point in group]
    lanes = [Lane(s) for s in subjects]
    first = next((lane for lane in lanes if lane.subject.rank_process), None)
    again = [Lane(first.subject)] if first and crews > 1 and control else []
    every = [*lanes, *again]
    try:
        for turn in range(crews):
            at = turn % len(every)
            for lane in every[at:] + every[:at]:
                tell(f"{lane.subject.name}, ranks as processes, {turn + 1} of {crews}")
                lane.crews.append(steps_of_crew(lane.subject, points))
    finally:
        floors = [apart(first.times(n), again[0].times(n)) for n in range(len(points)) if first and again]
        for lane in lanes:
            found = [merge(lane.subject.name, p, UNIT, lane.samples(n)) for n, p in enumerate(points)]
            for n, sample in enumerate(_beside_one_rank(found)):
                floor = floors[n] if floors and sample.rounds else None
                emit(sample.model_copy(update={"floor": floor}))


def _beside_one_rank(samples: Sequence[Sample]) -> list[Sample]:
    alone = {
        (s.parameters["sequences"], s.parameters["step"]): s.median
        for s in samples
        if s.rounds and s.parameters["ranks"] == 1
    }
    found = []
    for s in samples:
        one = alone.get((s.parameters["sequences"], s.parameters["step"]))
        if s.rounds and one and s.parameters["ranks"] > 1:
            s = s.model_copy(update={"counters": {"alone_ratio": s.median / one, "alone_us": one}})
        found.append(s)
    return found

"""The cells of ranks, in the order of the matrix, on those who have ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.bench.matrix import RANKS, STEPPED, Point
from kvproof.bench.rank_pressure import measure_pressure
from kvproof.bench.rank_rounds import measure_sync, shared
from kvproof.bench.ranks import Emit, measure_steps
from kvproof.bench.subject import Subject
from kvproof.bench.traces import Trace


def measure(
    subjects: Sequence[Subject],
    points: Sequence[Point],
    trace: Trace,
    emit: Emit,
    tell: Callable[[object], None],
    processes: int = 1,
    crews: int = 1,
    paired: bool = False,
) -> None:
    """Measure the points of ranks; `tell` is told each, or each crew.

    With several processes those of one object are left to `rounds.measure`. Ranks as processes are measured
    by so many crews, one after another, which share the rounds; if another version does the same in turns,
    each has all of them, and there is no control.
    """
    subjects = [s for s in subjects if s.make_ranks is not None]
    for cell in RANKS if subjects else ():
        here = [point for point in points if point.cell == cell]
        if here and cell == "ranks_sync":
            measure_sync(subjects, here if paired else shared(here, crews), crews, emit, tell, not paired)
        elif cell == "ranks_pressure":
            for point in here:
                tell(point)
                measure_pressure(subjects, point, trace, emit)
        elif here and cell in STEPPED and processes == 1:
            for point in here:
                tell(point)
            measure_steps(subjects, here, emit)

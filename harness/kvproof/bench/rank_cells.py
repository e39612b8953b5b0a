"""The cells of ranks, in the order of the matrix, on those who have ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.bench.matrix import RANKS, Point
from kvproof.bench.rank_pressure import measure_pressure
from kvproof.bench.rank_sync import measure_sync
from kvproof.bench.ranks import Emit, measure_steps
from kvproof.bench.subject import Subject
from kvproof.bench.traces import Trace


def measure(
    subjects: Sequence[Subject],
    points: Sequence[Point],
    trace: Trace,
    emit: Emit,
    tell: Callable[[object], None],
) -> None:
    """Measure the points of ranks; `tell` is told each."""
    subjects = [s for s in subjects if s.make_ranks is not None]
    for cell in RANKS if subjects else ():
        here = [point for point in points if point.cell == cell]
        for point in here:
            tell(point)
            if cell == "ranks_pressure":
                measure_pressure(subjects, point, trace, emit)
        if here and cell == "ranks_sync":
            measure_sync(subjects, here, emit)
        elif here and cell != "ranks_pressure":
            measure_steps(subjects, here, emit)

"""Which processes of a run count: those that the rest of the machine left alone, and how many are enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvproof.stats import median_interval

DISTURBED = 1.12
"""A process is disturbed where the calibration loop around its cell takes so many times its quiet time: a
busy neighbour on the same core makes that 1.3 to 1.5, chance 1.05."""
QUIET = 0.1
"""Share of all calibrations of a run that are taken to be as fast as the quiet machine."""
SLOWED = 1.25
"""In one process at least the loop takes less than so many times what it took before the implementation was
opened: a heap of millions of objects alone makes that 1.13."""
NARROW = 1.08
"""The median of a cell is settled when its 95 % interval, upper over lower end, is no wider: two settled
sides of equal speed then lie within the bound of a comparison."""


def load(cal: float, waited: float) -> float:
    """The loop's time, and more of it where rounds stood still: long ones do while the short loop is lucky.

    Args:
        waited: share of the time of the rounds for which the machine had their processor.
    """
    return cal / max(1 - waited, 0.01)


def slowed(loops: Sequence[float]) -> str:
    """Why the loop does not measure the machine; empty if it does. A neighbour slows some processes, or all
    the time; who slows all, and only once opened, makes its own time look short.

    Args:
        loops: of each process, the loop's time around the cell over that before the subject was opened.
    """
    if not loops or min(loops) <= SLOWED:
        return ""
    return (
        f"in each of its processes the calibration loop takes {min(loops):.3g}x and more of what it took "
        f"before the implementation was opened, allowed is {SLOWED:g}x: its times do not compare"
    )


def quiet(cals: Sequence[float]) -> float:
    """What the calibration loop takes on the quiet machine, from all calibrations of a run."""
    return float(np.quantile(cals, QUIET))


def chosen(cals: Sequence[float], least: int, speed: float) -> list[int]:
    """Numbers of the processes that count, in their order: those that are not disturbed.

    Where fewer than `least` are not, the least disturbed fill up. The loop decides, never the time of the
    cell: a slow process on a quiet machine counts.

    Args:
        cals: of each process, the time of the calibration loop around the cell.
        least: processes that were asked for.
        speed: as `quiet` has found it.
    """
    calmest = sorted(range(len(cals)), key=lambda n: cals[n])
    calm = sum(cal <= DISTURBED * speed for cal in cals)
    return sorted(calmest[: max(calm, least)])


def wanting(times: Sequence[float], cals: Sequence[float], least: int, speed: float) -> bool:
    """Whether a cell needs another process: it has too few undisturbed ones, or these are too far apart.

    Args:
        times: of each process, in turns of the calibration loop.
        cals, least, speed: as in `chosen`.
    """
    kept = chosen(cals, least, speed)
    if sum(cals[n] <= DISTURBED * speed for n in kept) < least:
        return True
    _, low, high = median_interval([times[n] for n in kept])
    return high > NARROW * low

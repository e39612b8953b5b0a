"""What several processes found at one point, as one sample."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.bench.counted import differ, exact
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.records import Sample
from kvproof.stats import median, quantiles

LARGEST = ("warm_up", "error")
"""Counters of which the largest is told."""
SUMMED = ("left_out",)
"""Counters that are added up; of all others the median is told."""


def merge(name: str, point: Point, unit: str, parts: Sequence[Sample]) -> Sample:
    """The medians of the processes as one sample, one process's as it is.

    Without a number if one process has none.
    """
    if not parts:
        return empty(name, point, unit, "unsupported: broken off before its first round")
    if bad := [s for s in parts if not s.rounds]:
        return min(bad, key=lambda s: not s.note.startswith("INVALID"))
    if len(parts) == 1:
        return parts[0]
    low, middle, high = quantiles([s.median for s in parts])
    cals = tuple(s.cal or 0.0 for s in parts)
    per_cal = [s.per_cal for s in parts if s.per_cal is not None]
    return parts[0].model_copy(
        update={
            "median": middle,
            "low": low,
            "high": high,
            "rounds": sum(s.rounds for s in parts),
            "cal": median(cals) if all(cals) else None,
            "per_cal": median(per_cal) if per_cal else None,
            "counters": counters(parts),
            "processes": tuple(s.median for s in parts),
            "cals": cals if all(cals) else (),
            "note": "; ".join(dict.fromkeys(s.note for s in parts if s.note)),
        }
    )


def unequal(parts: Sequence[Sample]) -> str:
    """Which counts of the same input are not the same in all processes; empty if there are none."""
    found = [exact(s.counters) for s in parts if s.rounds]
    return next(filter(None, (differ(found[0], other, "processes") for other in found)), "")


def counters(parts: Sequence[Sample]) -> dict[str, float]:
    """Of all processes, those that each of them has."""
    found: dict[str, float] = {}
    for name in parts[0].counters:
        if all(name in s.counters for s in parts):
            values = [s.counters[name] for s in parts]
            found[name] = (
                max(values) if name in LARGEST else sum(values) if name in SUMMED else median(values)
            )
    return found


def times(samples: Sequence[Sample], seconds: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of each process its rounds, in turns of the calibration loop around them where that was timed."""
    return [[x * 1e9 / (s.cal or 1.0) for x in some] for s, some in zip(samples, seconds, strict=True)]


def apart(own: Sequence[Sequence[float]], control: Sequence[Sequence[float]]) -> float | None:
    """How far the medians of two equal lanes are apart, 0.03 is 3 %; None if one has no time."""
    if not own or not control:
        return None
    ratio = median([median(x) for x in own]) / median([median(x) for x in control])
    return max(ratio, 1 / ratio) - 1

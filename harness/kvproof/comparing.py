"""Whether one side is faster than the other: medians of processes, an interval, a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import comb, sqrt

import numpy as np
import numpy.typing as npt

from kvproof.stats import median_interval

LEAST_PROCESSES = 5
"""Of each side: with fewer, no order of the processes is rare enough for a verdict."""
LEAST_PAIRS = 10
"""Where the processes of both sides come in pairs: with fewer, nothing is told."""
RARE = 0.015
"""Two equal sides come out so far apart, by the test of ranks, in at most this share of comparisons."""
RARE_PAIRS, LIKELY = 0.0002, 0.05
"""The same of pairs, and where more of them are asked for: fourteen tell a difference if all show it."""
LEAST_CHANGE = 0.02
"""A smaller change is never told."""
BOUND = 1.10
"""The change that matters, unless told otherwise."""
WIDEST = 1.25
"""Where equal things are measured far apart, SAME is within more than the bound, and never more than this."""


class Difference(StrEnum):
    """What a comparison of times comes to, as seen from the second side."""

    FASTER = "FASTER"
    SAME = "SAME"
    SLOWER = "SLOWER"
    UNCLEAR = "UNCLEAR"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Comparison:
    """After over before: above 1 is slower."""

    ratio: float
    """Median of the process medians of after, over that of before; of pairs, of their ratios."""
    low: float
    high: float
    """95 % interval of the ratio."""
    p: float
    """Of Mann-Whitney's test on the process medians, of Wilcoxon's on pairs; exact, two-sided."""
    floor: float
    """How far apart equal things are, as measured or reckoned; a smaller change is never told."""
    verdict: Difference

    def __str__(self) -> str:
        text = f"{self.ratio:.3g}x ({self.low:.3g}-{self.high:.3g}"
        return text + (f", floor {self.floor:.1%})" if self.floor else ")")


def compare(
    before: Sequence[Sequence[float]],
    after: Sequence[Sequence[float]],
    *,
    floor: float = 0.0,
    bound: float = BOUND,
    resamples: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare the times of two sides, each measured in several processes.

    SLOWER, or FASTER, needs all of these: `LEAST_PROCESSES` on each side; Mann-Whitney's exact test on the
    process medians gives p < 0.015; the interval leaves out 1; the change is above 2 % and above `floor`.
    Else SAME if there are as many processes and the interval lies within 1/b to b, where b is the bound, or
    1 + 2 x `floor` up to 1.25 where that is more; else UNCLEAR. INVALID where a side has no time.

    How the rule was chosen. Times of one process hang together (arXiv:2007.10899), so the test sees one
    value a process: on single rounds it calls equal sides different in most runs. Limits of p and of the
    least change were tried in a simulation, of processes that differ by 2 % (one standard deviation), 9 on
    each side, a floor measured in the same run. With p < 0.015 and 2 %, equal sides are FASTER or SLOWER in
    0.7 % of runs, and a slowdown of 5 % is SLOWER in 97 %; with p < 0.01 in 95.8 % only. What is promised is
    under 1 % and at least 95 % (`selftest/test_comparing.py`). With 5 processes the test asks for two sides
    that do not overlap at all: it finds 5 % in about half of such runs, 10 % in 99 of 100.

    Args:
        before, after: for each process its times, positive, in one unit: many rounds, or their median only.
        floor: see `Comparison`; 0.03 if this run, or one of the two, measured equal things 3 % apart.
        bound: above 1: the change that matters.
        resamples: bootstrap draws: processes are drawn with replacement, then rounds within each.
        seed: of the draws; equal input and seed give the equal interval.

    Raises:
        ValueError: a time is not positive, the floor is negative, or the bound is not above 1.
    """
    _check(floor, bound)
    sides = [[np.asarray(times, dtype=np.float64) for times in side] for side in (before, after)]
    if any(not np.all(times > 0) for side in sides for times in side):
        raise ValueError("a time must be positive: ratios are compared")
    if any(not side or not all(times.size for times in side) for side in sides):
        nan = float("nan")
        return Comparison(nan, nan, nan, nan, floor, Difference.INVALID)
    medians = [np.array([np.median(times) for times in side]) for side in sides]
    ratio = float(np.median(medians[1]) / np.median(medians[0]))
    drawn = [_draws(sides[n], medians[n], resamples, seed + n) for n in (0, 1)]
    low, high = (float(x) for x in np.quantile(drawn[1] / drawn[0], (0.025, 0.975)))
    p = rank_test(*medians)
    enough = min(map(len, sides)) >= LEAST_PROCESSES
    verdict = _verdict(ratio, low, high, p < RARE, floor, bound, enough, max(LEAST_CHANGE, floor))
    return Comparison(ratio, low, high, p, floor, verdict)


def compare_pairs(before: Sequence[float], after: Sequence[float], *, bound: float = BOUND) -> Comparison:
    """Compare the times of two sides whose processes were measured in pairs, one at once after the other.

    As `compare`, on the ratios of the pairs, which the moments of the machine leave alone: Wilcoxon's test of
    signed ranks, exact, with p < 0.0002. A comparison has a hundred cells, of which none may be called
    different by chance: so 10 pairs, `LEAST_PAIRS`, tell only what is SAME, and where they are `undecided`
    more are made (`turns`). In the simulation that is told of in `compare`, up to twenty more call equal
    sides different in 0.1 % of cells, those of a drift of 5 and 10 % included, and find 5 % in 99 %.

    The floor is half of the interval's width: what is SAME may be known no better. Any change above 2 % is
    told, however many other cells have changed alike.

    Args:
        before, after: median of each process, of pair n at n.

    Raises:
        ValueError: as `compare`, or one side has more processes.
    """
    _check(0.0, bound)
    if len(before) != len(after):
        raise ValueError(f"{len(before)} and {len(after)} processes make no pairs")
    if not all(t > 0 for t in (*before, *after)):
        raise ValueError("a time must be positive: ratios are compared")
    ratios = np.asarray(after, dtype=np.float64) / np.asarray(before, dtype=np.float64)
    ratio, low, high = median_interval(ratios.tolist())
    p, enough, floor = signed_rank_test(np.log(ratios)), len(ratios) >= LEAST_PAIRS, sqrt(high / low) - 1
    verdict = _verdict(ratio, low, high, p < RARE_PAIRS, floor, bound, enough, LEAST_CHANGE)
    return Comparison(ratio, low, high, p, floor, verdict)


def undecided(found: Comparison) -> bool:
    """Whether it takes more pairs to tell: they are UNCLEAR, or look different."""
    looks = RARE_PAIRS <= found.p < LIKELY and change(found.ratio) > LEAST_CHANGE
    return looks or found.verdict is Difference.UNCLEAR


def change(ratio: float) -> float:
    """0.05 is 5 %, either way."""
    return max(ratio, 1 / ratio) - 1


def _check(floor: float, bound: float) -> None:
    if not bound > 1:
        raise ValueError(f"bound {bound:g}: allowed is above 1, such as 1.1")
    if not floor >= 0:
        raise ValueError(f"floor {floor:g}: allowed is 0 and above")


def _verdict(
    ratio: float, low: float, high: float, rare: bool, floor: float, bound: float, enough: bool, least: float
) -> Difference:
    if enough and rare and not low <= 1 <= high and change(ratio) > least:
        return Difference.SLOWER if ratio > 1 else Difference.FASTER
    wide = max(bound, min(WIDEST, 1 + 2 * floor))
    return Difference.SAME if enough and 1 / wide <= low and high <= wide else Difference.UNCLEAR


def rank_test(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """p of Mann-Whitney's test, exact and two-sided; ties count half and are rounded to the larger p."""
    n, m = len(a), len(b)
    above = float((a[:, None] < b).sum() + 0.5 * (a[:, None] == b).sum())
    least = int(np.ceil(min(above, n * m - above)))
    return min(1.0, 2 * sum(_orders(n, m)[: least + 1]) / comb(n + m, n))


def signed_rank_test(differences: npt.NDArray[np.float64]) -> float:
    """p of Wilcoxon's signed-rank test against 0, exact and two-sided; a 0 counts half to each sign."""
    n = len(differences)
    ranks = np.empty(n)
    ranks[np.argsort(np.abs(differences), kind="stable")] = np.arange(1, n + 1)
    above = float(ranks @ ((differences > 0) + 0.5 * (differences == 0)))
    least = int(np.ceil(min(above, n * (n + 1) / 2 - above)))
    return min(1.0, sum(_sums(n)[: least + 1]) / float(2 ** (n - 1)))


@lru_cache
def _sums(n: int) -> tuple[int, ...]:
    """How many of the subsets of 1...n have the sum 0, 1, 2..."""
    counts = np.zeros(n * (n + 1) // 2 + 1, dtype=object)
    counts[0] = 1
    for rank in range(1, n + 1):
        counts[rank:] = counts[rank:] + counts[:-rank]
    return tuple(int(c) for c in counts)


@lru_cache
def _orders(n: int, m: int) -> tuple[int, ...]:
    """How many of the orders of n and m values have 0, 1, 2... pairs in which the second is the larger."""
    counts = np.zeros(n * m + 1, dtype=object)
    counts[0] = 1
    for i in range(1, n + 1):  # times (1 - x^(m+i)) / (1 - x^i), a factor of the Gaussian binomial
        for k in range(n * m, m + i - 1, -1):
            counts[k] -= counts[k - m - i]
        for k in range(i, n * m + 1):
            counts[k] += counts[k - i]
    return tuple(int(c) for c in counts)


@lru_cache(maxsize=8)
def _chosen(processes: int, resamples: int, seed: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, processes, (resamples, processes))


def _draws(
    side: Sequence[npt.NDArray[np.float64]], medians: npt.NDArray[np.float64], resamples: int, seed: int
) -> npt.NDArray[np.float64]:
    """Median of process medians of each draw of a side."""
    chosen = _chosen(len(side), resamples, seed)
    found = medians[chosen]
    rng = np.random.default_rng(seed)
    for n, times in enumerate(side):
        if times.size > 1:  # its rounds are drawn anew wherever it was chosen
            at = chosen == n
            found[at] = np.median(rng.choice(times, (int(at.sum()), times.size)), axis=1)
    return np.asarray(np.median(found, axis=1))

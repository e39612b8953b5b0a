"""Medians, slopes and intervals against figures worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.stats import median, quantiles, ratio_interval, slope


def test_median_and_quartiles() -> None:
    assert median([5.0, 1.0, 3.0]) == 3.0
    assert median([1.0, 2.0, 3.0, 10.0]) == 2.5
    assert quantiles([0.0, 1.0, 2.0, 3.0, 4.0]) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_slope_is_the_growth_exponent(power: float) -> None:
    sizes = [2.0**k for k in range(10, 21)]
    assert slope(sizes, [7.0 * s**power for s in sizes]) == pytest.approx(power, abs=1e-9)


def test_slope_tells_a_scan_from_constant_cost() -> None:
    rng = np.random.default_rng(1)
    sizes = [2.0**k for k in range(10, 21, 2)]
    scan = [(50 + 0.3 * s) * rng.uniform(0.8, 1.2) for s in sizes]
    flat = [50 * rng.uniform(0.8, 1.2) for _ in sizes]
    assert slope(sizes, scan) >= 0.7
    assert abs(slope(sizes, flat)) < 0.5


@pytest.mark.parametrize(
    ("xs", "ys", "named"),
    [([1, 2], [1], "one cost a size"), ([1, 0], [1, 1], "positive"), ([2, 2], [1, 1], "two different")],
)
def test_slope_refuses(xs: list[float], ys: list[float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        slope(xs, ys)


def test_ratio_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for trial in range(100):
        a, b = rng.normal(120, 5, 40), rng.normal(100, 5, 40)
        ratio, low, high = ratio_interval(list(a), list(b), seed=trial, resamples=500)
        assert low <= ratio <= high
        covered += low <= 1.2 <= high
    assert covered >= 85


def test_ratio_interval_is_seeded() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 5.0]
    assert ratio_interval(a, b, seed=5) == ratio_interval(a, b, seed=5)
    with pytest.raises(ValueError, match="positive"):
        ratio_interval([], b)
    with pytest.raises(ValueError, match="level"):
        ratio_interval(a, b, level=1.0)


def test_empty_input_is_named() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median([])
    with pytest.raises(ValueError, match="0 to 1"):
        quantiles([1.0], (1.5,))

"""The verdict about two times: false alarms and misses by simulation, and the figures by hand."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from kvproof.bench.turns import MORE, TURNS
from kvproof.comparing import (
    Comparison,
    Difference,
    compare,
    compare_pairs,
    rank_test,
    signed_rank_test,
    undecided,
)

DRIFT, PROCESSES = 0.02, 9


def verdicts(slowdown: float, runs: int, processes: int = PROCESSES) -> dict[Difference, float]:
    """Share of each verdict, where processes drift, and each run measures its floor on equal things."""
    rng = np.random.default_rng(11)
    times = np.exp(rng.normal(0, DRIFT, (runs, 4, processes)))
    times[:, 1] *= slowdown
    floors = np.exp(np.abs(np.log(np.median(times[:, 2], axis=1) / np.median(times[:, 3], axis=1)))) - 1
    found = [
        compare(before[:, None], after[:, None], floor=float(floor), resamples=200).verdict
        for before, after, floor in zip(times[:, 0], times[:, 1], floors, strict=True)
    ]
    return {kind: found.count(kind) / runs for kind in Difference}


def test_equal_sides_are_seldom_called_different() -> None:
    found = verdicts(1.0, 3000)
    assert found[Difference.FASTER] + found[Difference.SLOWER] < 0.01
    assert found[Difference.SAME] > 0.9


def test_a_slowdown_of_5_percent_is_found() -> None:
    found = verdicts(1.05, 1500)
    assert found[Difference.SLOWER] >= 0.95
    assert found[Difference.FASTER] == 0


def test_five_processes_raise_no_more_alarms() -> None:
    found = verdicts(1.0, 1500, processes=5)
    assert found[Difference.FASTER] + found[Difference.SLOWER] < 0.01
    assert verdicts(1.3, 300, processes=5)[Difference.SLOWER] >= 0.99


def in_pairs(slowdown: float, runs: int, drift: float = DRIFT) -> dict[Difference, float]:
    """The same of ten pairs, whose moments differ by up to half; some more if they do not tell."""
    rng = np.random.default_rng(12)
    most = TURNS + MORE
    times = np.exp(rng.normal(0, drift, (runs, 2, most))) * rng.uniform(1, 1.5, (runs, 1, most))
    times[:, 1] *= slowdown
    found = []
    for before, after in times:
        for pairs in range(TURNS, most + 1):
            result = compare_pairs(before[:pairs], after[:pairs])
            if not undecided(result):
                break
        found.append(result.verdict)
    return {kind: found.count(kind) / runs for kind in Difference}


def test_pairs_keep_the_promise_without_a_floor() -> None:
    equal = in_pairs(1.0, 4000)
    assert equal[Difference.FASTER] + equal[Difference.SLOWER] < 0.002, "a comparison has a hundred cells"
    assert equal[Difference.SAME] > 0.98
    noisy = in_pairs(1.0, 1000, drift=0.07)
    assert noisy[Difference.FASTER] + noisy[Difference.SLOWER] < 0.003
    assert noisy[Difference.SAME] > 0.95
    slower = in_pairs(1.05, 1000)
    assert slower[Difference.SLOWER] >= 0.98
    assert slower[Difference.FASTER] == 0


def test_pairs_by_hand() -> None:
    moments = [1.0, 2.0, 1.5, 1.0, 3.0, 1.0, 1.2, 1.0, 1.1, 1.4, 1.0, 1.2, 1.1, 1.3]
    found = compare_pairs(moments, [1.3 * t for t in moments])
    assert found.verdict is Difference.SLOWER
    assert found.ratio == pytest.approx(1.3)
    assert found.p == pytest.approx(2 / 2**14)
    assert compare_pairs(moments, moments).verdict is Difference.SAME
    assert compare_pairs(moments[:9], [1.3 * t for t in moments[:9]]).verdict is Difference.UNCLEAR
    with pytest.raises(ValueError, match="14 and 7 processes make no pairs"):
        compare_pairs(moments, moments[:7])
    with pytest.raises(ValueError, match="positive"):
        compare_pairs([0.0] * 14, moments)


def test_who_is_undecided() -> None:
    def of(*ratios: float) -> bool:
        return undecided(compare_pairs([1.0] * len(ratios), ratios))

    assert of(*[1.08] * 9, 0.99)
    assert not of(*[1.015] * 9, 0.99), "so small a change is never told"
    assert of(*[1.1] * 13)
    assert not of(*[1.1] * 14)
    assert not of(*[1.08, 0.93] * 5)
    assert of(*[1.3, 0.8] * 5), "it is UNCLEAR"
    assert not of(*[1.12, 0.9] * 5), "it is SAME, as nearly as it is known"


def test_the_test_of_signed_ranks_counts_every_sign() -> None:
    sizes = np.arange(1.0, 7.0)
    for signs in ((1, 1, 1, 1, 1, 1), (-1, 1, 1, 1, 1, 1), (1, 1, -1, 1, -1, 1), (1, -1, 1, -1, 1, -1)):
        far = abs(float(sizes @ np.array(signs)))
        every = [abs(float(sizes @ np.array(s))) >= far for s in product((-1, 1), repeat=6)]
        assert signed_rank_test(sizes * signs) == pytest.approx(sum(every) / len(every))
    assert signed_rank_test(np.zeros(5)) == 1.0


def one_each(*times: float) -> list[list[float]]:
    return [[t] for t in times]


FAST = one_each(1.0, 1.01, 1.02, 1.03, 1.04)
SLOW = one_each(1.30, 1.31, 1.32, 1.33, 1.34)


def test_verdicts_by_hand() -> None:
    slower = compare(FAST, SLOW)
    assert slower.verdict is Difference.SLOWER
    assert slower.ratio == pytest.approx(1.32 / 1.02)
    assert slower.p == pytest.approx(2 / 252)
    assert slower.low < slower.ratio < slower.high
    assert compare(SLOW, FAST).verdict is Difference.FASTER
    assert compare(FAST, FAST).verdict is Difference.SAME
    assert compare(FAST, one_each(*[1.01] * 5)).verdict is Difference.SAME
    assert compare(FAST, SLOW, floor=0.4).verdict is Difference.UNCLEAR, "equal things are as far apart"
    assert compare(FAST[:4], SLOW).verdict is Difference.UNCLEAR, "four processes tell nothing"
    assert compare(FAST[:1], FAST[:1]).verdict is Difference.UNCLEAR, "one process tells nothing"
    assert compare(FAST, one_each(0.8, 0.9, 1.0, 1.2, 1.3)).verdict is Difference.UNCLEAR
    assert compare([], SLOW).verdict is Difference.INVALID
    barely = compare(FAST, [[t * 1.015] for (t,) in one_each(1.0, 1.0, 1.0, 1.0, 1.0)])
    assert barely.verdict is Difference.SAME


def test_the_same_is_wider_where_equal_things_are_far_apart() -> None:
    apart = one_each(0.88, 0.94, 1.0, 1.06, 1.12)
    assert compare(apart, apart).verdict is Difference.UNCLEAR
    assert compare(apart, apart, floor=0.12).verdict is Difference.SAME
    far = [[t * 1.3] for (t,) in apart]
    assert compare(apart, far, floor=0.9).verdict is Difference.UNCLEAR, "never wider than 1.25"


def test_rounds_within_a_process_widen_the_interval() -> None:
    rng = np.random.default_rng(2)
    noisy = [list(rng.uniform(0.5, 1.5, 7)) for _ in range(6)]
    medians = [[float(np.median(times))] for times in noisy]

    def width(c: Comparison) -> float:
        return c.high - c.low

    assert width(compare(noisy, noisy)) > 1.1 * width(compare(medians, medians))


def test_the_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        a, b = rng.normal(1, 0.02, (9, 1)), rng.normal(1.2, 0.024, (9, 1))
        c = compare(a.tolist(), b.tolist(), resamples=400)
        covered += c.low <= 1.2 <= c.high
    assert covered >= 180


def test_the_rank_test_counts_every_order() -> None:
    values = np.arange(6.0)
    for a in ((0, 1, 2), (0, 1, 3), (0, 2, 4), (1, 2, 3)):
        mine, others = values[list(a)], np.delete(values, list(a))

        def larger(x: np.ndarray, y: np.ndarray) -> int:
            return int((x[:, None] < y).sum())

        far = abs(larger(mine, others) - 4.5)
        every = [abs(larger(np.array(o[:3]), np.array(o[3:])) - 4.5) >= far for o in permutations(values)]
        assert rank_test(mine, others) == pytest.approx(sum(every) / len(every))
    assert rank_test(np.ones(5), np.ones(5)) == 1.0


def test_wrong_input_is_named() -> None:
    with pytest.raises(ValueError, match="positive"):
        compare([[0.0]], [[1.0]])
    with pytest.raises(ValueError, match="bound 1: allowed is above 1"):
        compare(FAST, SLOW, bound=1.0)
    with pytest.raises(ValueError, match="floor -1"):
        compare(FAST, SLOW, floor=-1.0)

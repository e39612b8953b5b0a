"""Which processes count, by hand and by simulation, and a run whose processes were disturbed on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvproof.bench import calm, rounds
from kvproof.bench.matrix import Point
from kvproof.bench.rounds import MORE, Lane, Shape
from kvproof.comparing import Difference, compare
from kvproof.records import Sample
from kvproof.selftest.bench_calls import full

QUIET, BUSY = 100.0, 140.0
POINTS = [Point("pool", {"blocks": 256}), Point("fork", {"tokens": 64})]


def test_disturbed_processes_do_not_count() -> None:
    cals = [100, 101, 140, 103, 99, 104]
    assert calm.chosen(cals, 5, 100) == [0, 1, 3, 4, 5]
    assert calm.chosen(cals, 3, 100) == [0, 1, 3, 4, 5], "all quiet ones count"
    assert calm.chosen([100, 140, 130, 150], 3, 100) == [0, 1, 2], "the least disturbed fill up"
    assert calm.chosen([140, 141, 139], 3, calm.quiet([140, 141, 139])) == [0, 1, 2], "busy all the time"


def test_a_cell_wants_more_until_it_has_settled() -> None:
    even = [1.0, 1.01, 1.02, 1.0, 1.01]
    assert not calm.wanting(even, [QUIET] * 5, 5, QUIET)
    assert calm.wanting(even, [QUIET] * 4 + [BUSY], 5, QUIET), "four quiet ones"
    assert calm.wanting([*even[:4], 1.3], [QUIET] * 5, 5, QUIET), "one is far out"
    assert not calm.wanting([*even[:4], 1.3, 1.01, 1.0], [QUIET] * 7, 5, QUIET), (
        "one of seven moves no median"
    )


def settled(rng: np.random.Generator, scale: float, drift: float) -> list[float]:
    """Times of one side: five processes and then as many as the rule wants."""
    times: list[float] = (scale * np.exp(rng.normal(0, drift, 5 + MORE))).tolist()
    for n in range(5, 5 + MORE):
        if not calm.wanting(times[:n], [QUIET] * n, 5, QUIET):
            return times[:n]
    return times


@pytest.mark.parametrize("drift", [0.02, 0.05])
def test_going_on_until_settled_raises_no_alarms(drift: float) -> None:
    """Where processes differ by `drift`: equal sides are told apart in under 1 % of comparisons."""
    rng = np.random.default_rng(5)

    def verdicts(slowdown: float, runs: int) -> list[Difference]:
        sides = [(settled(rng, 1, drift), settled(rng, slowdown, drift)) for _ in range(runs)]
        return [compare([[t] for t in a], [[t] for t in b], resamples=200).verdict for a, b in sides]

    equal = verdicts(1.0, 600)
    assert equal.count(Difference.SAME) > 0.6 * len(equal)
    assert len(equal) - equal.count(Difference.SAME) - equal.count(Difference.UNCLEAR) < 0.01 * len(equal)
    slowed = verdicts(1.3, 100)
    assert slowed.count(Difference.SLOWER) > 0.98 * len(slowed)


class Machine:
    """Stands in for `_process`: processes on a machine that is busy in some of the rounds."""

    def __init__(self, busy: Sequence[int]) -> None:
        self.busy = busy
        self.asked: list[tuple[int, list[int]]] = []

    def __call__(
        self, lane: Lane, points: Sequence[Point], some: Sequence[int], shape: Shape, turn: int
    ) -> list[str]:
        self.asked.append((turn, list(some)))
        for n in some:
            slow = turn in self.busy and n == 0
            cal, time = (BUSY, 2.0) if slow else (QUIET, 1.0 + turn / 1000)
            counters = {"round_us": time, "warm_up": 2.0, "left_out": 0.0}
            lane.samples[n].append(
                Sample(
                    implementation=lane.subject.name,
                    cell=points[n].cell,
                    parameters=points[n].parameters,
                    unit="ns",
                    median=time,
                    low=time,
                    high=time,
                    rounds=1,
                    cal=cal,
                    per_cal=time / cal,
                    counters=counters,
                )
            )
            lane.seconds[n].append([time * 1e-9])
        return []


@pytest.mark.parametrize(("busy", "left_out"), [([], 0), ([1], 1), ([0, 4], 2), (list(range(20)), 4)])
def test_disturbed_processes_are_measured_again(
    busy: list[int], left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, samples = Machine(busy), list[Sample]()
    monkeypatch.setattr(rounds, "_process", machine)
    rounds.measure([full()], POINTS, Shape(5, 0.01), samples.append, lambda _: None)
    first, second = samples
    assert first.counters["disturbed"] == left_out
    assert len(first.processes) == 5
    assert (max(first.processes) < 2.0) == (len(busy) < 20), "busy ones count only where no others are"
    assert second.counters["disturbed"] == 0
    again = [(turn, some) for turn, some in machine.asked if turn >= 5]
    assert all(some == [0] for _, some in again), "only the cell that was disturbed"
    assert len(again) == 2 * left_out, "the implementation and its control"

"""Kernels and ranks in several processes: how they are combined, and what one process may not hide."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproof.bench import attention_rounds, rank_rounds, rounds
from kvproof.bench.attention_rounds import CONTROL, Shape
from kvproof.bench.kernels import KernelSubject
from kvproof.bench.matrix import STEPPED, Point
from kvproof.bench.merged import apart, merge, unequal
from kvproof.bench.plan import Plan
from kvproof.bench.rank_cells import measure as measure_ranks
from kvproof.bench.rank_work import KINDS
from kvproof.bench.run import run
from kvproof.bench.subject import Subject, open_subject
from kvproof.bench.traces import synthetic
from kvproof.records import Sample
from kvproof.report.results import read
from kvproof.stats import median_interval
from kvproof.subjects import find

STEP = {"tokens": 300, "dtype": "fp32", "batch": 2, "heads": "4/2", "head_dim": 16}
POINT = Point("attention", {**STEP, "block_size": 16, "topology": "shuffled"})
BAR = Point("attention", {**STEP, "block_size": "none", "topology": "contiguous"})
KERNELS = [KernelSubject(name, None, spec=f"{name}.py:make") for name in ("ours", "theirs")]
Told = Callable[[int], dict[str, tuple[float, float]]]
"""Number of a process -> name -> (us of its step, ratio to the bar)."""


def line(name: str, us: float, cal: float = 100.0, note: str = "", **counters: float) -> dict[str, Any]:
    point = BAR if name == "SDPA" else POINT
    found = Sample(
        implementation=name,
        cell=point.cell,
        parameters=point.parameters,
        unit="us/step",
        median=0 if note else us,
        low=us,
        high=us,
        rounds=0 if note else 3,
        cal=None if note else cal,
        counters=counters,
        note=note,
    )
    return {"sample": found.model_dump(), "seconds": [] if note else [us / 1e6] * 3}


def measured(
    monkeypatch: pytest.MonkeyPatch, told: Callable[[int, dict[str, Any]], tuple[Any, str, list[str]]]
) -> tuple[list[Sample], list[dict[str, Any]], list[str]]:
    """Samples of 3 processes that tell this, what they were ordered to do, and faults."""
    orders: list[dict[str, Any]] = []

    def child(order: dict[str, Any], turn: int) -> tuple[Any, str, list[str]]:
        orders.append(order)
        return told(turn, order)

    monkeypatch.setattr(attention_rounds, "_child", child)
    samples: list[Sample] = []
    faults = attention_rounds.measure(KERNELS, [POINT], Shape(3, 0.3), samples.append, lambda _: None)
    return samples, orders, faults


def test_the_median_is_that_of_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    us, control = (100.0, 120.0, 90.0), (103.0, 106.0, 90.0)

    def told(turn: int, order: dict[str, Any]) -> tuple[Any, str, list[str]]:
        ours = line("ours", us[turn], 100.0 + turn, error=turn / 10, roofline=0.5, ratio=0.2 + turn / 10)
        theirs, again = line("theirs", 500), line(CONTROL, control[turn], 100.0 + turn)
        return [line("SDPA", 400), ours, theirs, again], "", []

    samples, orders, faults = measured(monkeypatch, told)
    assert faults == []
    assert [s.implementation for s in samples] == ["SDPA", "ours", "theirs"], "the control is no one's"
    ours = samples[1]
    assert (ours.median, ours.low, ours.high, ours.rounds) == (100, 95, 110, 9)
    assert ours.processes == us
    assert ours.cals == (100, 101, 102)
    assert ours.counters["error"] == 0.2
    assert ours.counters["ratio"] == pytest.approx(0.3)
    assert ours.counters["ratio_low"] == pytest.approx(0.2)
    assert ours.counters["ratio_high"] == pytest.approx(0.4)
    # In turns of the calibration loop: 100 / 100 and 103 / 100 are the middle ones.
    assert ours.floor == samples[2].floor == pytest.approx(0.03)
    assert samples[0].floor is None
    assert [o["job"]["turn"] for o in orders] == [0, 1, 2]
    assert orders[0]["kernels"] == [
        ("ours", "ours.py:make"),
        ("theirs", "theirs.py:make"),
        (CONTROL, "ours.py:make"),
    ]


def test_no_number_in_one_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others are not asked again; a control without a number leaves no floor."""
    wrong, slow = "INVALID: relative error 1", "unsupported: left out: slow"

    def told(turn: int, order: dict[str, Any]) -> tuple[Any, str, list[str]]:
        notes = order["job"]["notes"]
        theirs = line("theirs", 1, note=wrong if turn == 1 else notes.get(f"theirs, {POINT}", ""))
        again = line(CONTROL, 1, note=slow if turn == 0 else notes[f"control, {POINT}"])
        return [line("ours", 100), theirs, again], "", []

    samples, orders, _ = measured(monkeypatch, told)
    assert [(s.rounds, s.note, s.floor) for s in samples] == [(9, "", None), (0, wrong, None)]
    assert orders[2]["job"]["notes"] == {f"control, {POINT}": slow, f"theirs, {POINT}": wrong}
    assert [o["job"]["patience"] for o in orders] == [1, float("inf"), float("inf")]


def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(turn: int, order: dict[str, Any]) -> tuple[Any, str, list[str]]:
        lines = [line("SDPA", 400), line("ours", 100), line("theirs", 500), line(CONTROL, 100)]
        return (lines[:2], "ended with status -11", ["it fell"]) if turn == 1 else (lines, "", [])

    samples, _, faults = measured(monkeypatch, told)
    assert faults == []
    assert [s.rounds for s in samples] == [9, 9, 0]
    assert samples[2].note == "INVALID: its process ended with status -11: it fell"


def test_a_time_is_held_against_the_fastest_memory_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour that slowed memory in one process makes no kernel too fast; one that is too fast is."""
    pytest.importorskip("torch", reason="kernels need torch")

    def told(turn: int, order: dict[str, Any]) -> tuple[Any, str, list[str]]:
        memory = (10.0, 20.0, 10.0)[turn]
        ours, theirs = (line(n, 100, gbps=g, fastest_gbps=memory) for n, g in (("ours", 15), ("theirs", 26)))
        return [ours, theirs, line(CONTROL, 100)], "", []

    (ours, theirs), _, _ = measured(monkeypatch, told)
    assert ours.rounds == 9
    assert "fastest_gbps" not in ours.counters
    assert theirs.note == "INVALID: 100 us, the bytes alone take 130 us as fast as memory was read"


def test_faults_outside_the_kernels_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line("ours", 100), line("theirs", 500), line(CONTROL, 100)]
    samples, _, faults = measured(
        monkeypatch, lambda turn, order: (lines, "ended with status 1", ["not run"])
    )
    assert faults == ["not run"]
    assert [s.rounds for s in samples] == [9, 9]


def test_a_run_that_is_broken_off_tells_its_whole_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(order: dict[str, Any], turn: int) -> tuple[Any, str, list[str]]:
        if turn == 1:
            raise KeyboardInterrupt
        return [line("ours", 100), line("theirs", 500), line(CONTROL, 100)], "", []

    monkeypatch.setattr(attention_rounds, "_child", child)
    samples: list[Sample] = []
    with pytest.raises(KeyboardInterrupt):
        attention_rounds.measure(KERNELS, [POINT], Shape(3, 0.3), samples.append, lambda _: None)
    assert [s.rounds for s in samples] == [3, 3]


def test_a_kernel_that_no_other_process_can_open_says_so() -> None:
    samples: list[Sample] = []
    attention_rounds.measure(
        [KernelSubject("x", None)], [POINT], Shape(2, 0.1), samples.append, lambda _: None
    )
    assert [s.note for s in samples] == ["unsupported: cannot be opened in another process"]


SEEDED = """
import os
from kvproof.bench import attention, roofline
from kvproof.selftest.kernel_standin import Gather, Shifted

# A small probe of memory and small caches, and nothing depends on the speed of the machine.
roofline.PROBE_BYTES, roofline.SLACK, roofline.cache_bytes = 1 << 20, 1e9, lambda device: 1 << 16
attention.PATIENCE = attention.BAR_PATIENCE = 1e9

def make():
    return Gather()

def make_second():  # right in the first process only
    return Shifted() if os.environ.get("PYTHONHASHSEED") == "2" else Gather()
"""


def test_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole run of two: a kernel that is right, and one that is wrong in the second process."""
    pytest.importorskip("torch", reason="kernels need torch")
    from kvproof.bench import attention, roofline

    seeded = tmp_path / "seeded.py"
    seeded.write_text(SEEDED)
    monkeypatch.setattr("kvproof.bench.run.load", lambda *_: [POINT])
    names = [f"{seeded}:make", f"{seeded}:make_second"]
    for name in ("PROBE_BYTES", "SLACK", "cache_bytes"):  # the stand-in changes them here too
        monkeypatch.setattr(roofline, name, getattr(roofline, name))
    for name in ("PATIENCE", "BAR_PATIENCE"):
        monkeypatch.setattr(attention, name, getattr(attention, name))
    assert run(names, None, [], 16, None, True, 0, tmp_path / "runs", True, "kernel", processes=2) == 1
    samples = read(next((tmp_path / "runs").rglob("bench.jsonl"))).samples
    assert [s.implementation.partition(":")[2] or s.implementation for s in samples][:2] == [
        "SDPA",
        "SDPA folded",
    ]
    bar, folded, right, wrong = samples
    assert len(right.processes) == len(right.cals) == 2
    assert len(set(right.processes)) == 2
    assert all(right.cals)
    assert right.floor is not None
    assert right.counters["ratio_low"] <= right.counters["ratio"] <= right.counters["ratio_high"]
    assert bar.rounds > 1
    assert folded.rounds > 1
    assert wrong.note.startswith("INVALID: relative error")


# ---------------------------------------------------------------- merging


def stepped(us: float, **counters: float) -> Sample:
    return Sample(
        implementation="x",
        cell="ranks_step",
        parameters={},
        unit="us/step",
        median=us,
        low=us,
        high=us,
        rounds=2,
        cal=100,
        counters=counters,
    )


def test_exact_counts_are_the_same_in_all_processes() -> None:
    parts = [stepped(3, messages=6, bytes=1000), stepped(1, messages=6, bytes=1000)]
    assert merge("x", Point("ranks_step", {}), "us/step", parts).counters == {"messages": 6, "bytes": 1000}
    assert unequal(parts) == ""
    said = unequal([*parts, stepped(2, messages=6, bytes=1001)])
    assert said == "bytes 1,000 and 1,001: of the same input, in two processes"


def test_how_far_two_lanes_are_apart() -> None:
    assert apart([[1.0], [2.0, 2.0, 9.0]], [[1.5], [1.6]]) == pytest.approx(1.55 / 1.5 - 1)
    assert apart([], [[1.0]]) is None


def test_the_interval_of_a_median_of_five_is_about_all_of_them() -> None:
    assert median_interval([5.0, 1.0, 2.0, 3.0, 4.0]) == (3, 1, 5)
    assert median_interval([2.0]) == (2, 2, 2)
    with pytest.raises(ValueError, match="level 1"):
        median_interval([1.0], level=1)


# ---------------------------------------------------------------- ranks

RANKS = """
import os
from kvproof_impls.reference.adapter import make_ranks

def message_parts(data):
    long = len(data) > 500  # it has a prompt; its parts are other ones in each process
    return {"tokens": 0, "digest": len(data)} if long and os.environ.get("PYTHONHASHSEED") == "2" else {
        "tokens": len(data), "digest": 0
    }
"""
SETTINGS = {"blocks": 2, "rounds": 4}


def points(cell: str, *worlds: int) -> list[Point]:
    return [
        Point(cell, {"ranks": ranks, "sequences": 4, "step": kind}, SETTINGS)
        for ranks in worlds
        for kind in KINDS
    ]


def test_steps_of_ranks_in_two_processes(tmp_path: Path) -> None:
    """What its admissions consist of is another thing in the second process."""
    path = tmp_path / "group.py"
    path.write_text(RANKS)
    here = rank_rounds.shared(points("ranks_step", 2), 2)
    assert {p.settings["rounds"] for p in here} == {2}
    samples: list[Sample] = []
    subject = open_subject(find(f"{path}:make_ranks"), 16)
    assert rounds.measure([subject], here, rounds.Shape(2, 0.1), samples.append, lambda _: None) == []
    *steady, admission = samples
    for s in steady:
        assert 2 <= len(s.processes) == len(s.cals) <= 2 + rounds.MORE
        assert s.floor is not None
        assert s.counters["bytes"] > s.counters["messages"] > 0
    assert admission.unit == "us/step"
    assert re.match(r"INVALID: tokens_bytes [\d,]+ and [\d,]+", admission.note)
    assert admission.note.endswith("of the same input, in two processes")


def test_steps_over_processes_in_two_crews(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has as many crews more; one that ends is a finding."""
    crews: list[str] = []

    def crew(s: Subject, some: Sequence[Point]) -> list[tuple[Sample, list[float]]]:
        crews.append(s.name)
        us = len(crews) + (0 if s.name == "one" else 100)
        found = [
            (
                stepped(us * p.parameters["ranks"]).model_copy(
                    update={"cell": p.cell, "parameters": p.parameters, "implementation": s.name}
                ),
                [us * p.parameters["ranks"] / 1e6],
            )
            for p in some
        ]
        if s.name == "two" and crews.count("two") == 2:
            found[-1] = (found[-1][0].model_copy(update={"rounds": 0, "note": "INVALID: it ended"}), [])
        return found

    monkeypatch.setattr(rank_rounds, "steps_of_crew", crew)
    one, two = (
        Subject(name, None, 16, rank_process="x", make_ranks=lambda *_: None) for name in ("one", "two")
    )
    samples: list[Sample] = []
    measure_ranks(
        [one, two], points("ranks_sync", 1, 2), synthetic(0, 1), samples.append, lambda _: None, 2, 2
    )
    assert crews == ["one", "two", "one", "two", "one", "one"]
    by = {(s.implementation, s.parameters["ranks"], s.parameters["step"]): s for s in samples}
    assert len(by) == len(samples) == 12
    alone, both = by["one", 1, "decode"], by["one", 2, "decode"]
    assert alone.processes == (1, 6)
    assert alone.median == 3.5
    assert alone.floor == pytest.approx(4 / 3.5 - 1)  # the control had 3 and 5
    assert both.counters == {"alone_ratio": 2, "alone_us": 3.5}
    assert by["two", 1, "decode"].floor == alone.floor
    assert by["two", 2, "admission"].note == "INVALID: it ended"
    assert by["two", 2, "admission"].floor is None


def test_crews_beside_another_version_have_all_rounds_and_no_control(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds_of: list[int] = []

    def crew(_: Subject, some: Sequence[Point]) -> list[tuple[Sample, list[float]]]:
        rounds_of.append(some[0].settings["rounds"])
        return [(stepped(9.0).model_copy(update={"parameters": p.parameters}), [9e-6]) for p in some]

    monkeypatch.setattr(rank_rounds, "steps_of_crew", crew)
    subject = Subject("one", None, 16, rank_process="x", make_ranks=lambda *_: None)
    here, samples = points("ranks_sync", 1), list[Sample]()
    told: list[object] = []
    measure_ranks([subject], here, synthetic(0, 1), samples.append, told.append, 1, 3, paired=True)
    assert rounds_of == [here[0].settings["rounds"]] * 3
    assert len(told) == 3, "the other version measures a crew after each"
    assert [(len(s.processes), s.floor) for s in samples] == [(3, None)] * len(here)


def test_a_plan_knows_what_is_measured_in_processes() -> None:
    trace = synthetic(0, 1)
    kernel, ranked = KERNELS[0], Subject("r", None, 16, make_ranks=lambda *_: None)
    nobody = Subject("m", lambda *_: Manager(), 16)
    every = [POINT, *points("ranks_sync", 1), *points("ranks_step", 1), Point("fork", {"tokens": 1})]

    def plan(subjects: Sequence[Subject], kernels: Sequence[KernelSubject], some: Sequence[Point]) -> Plan:
        return Plan(subjects, some, trace, (), False, 0, kernels, rounds=5, kernel_rounds=5)

    assert plan([], [kernel], every).several()
    assert plan([ranked], [], every).stepped == [p for p in every if p.cell in STEPPED]
    assert not plan([nobody], [], points("ranks_sync", 1)).several()
    whole = plan([ranked], [kernel], every)
    assert whole.steps == 5 * 2 + 5 * 2 + 5
    assert replace(whole, quick=True).steps == 5 * 2 + 1 + 5, "a quick run has one crew"
    assert replace(whole, quick=True, share=5).crews == 3, "beside another version it has three"


class Manager:
    capabilities = frozenset[str]()

"""A whole run of the benchmark on a stand-in: its status, its files, its arguments."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvproof.bench import prompts
from kvproof.bench.matrix import Point
from kvproof.bench.measure import Job
from kvproof.bench.plan import Plan
from kvproof.bench.run import _open, measure, run
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.bench.traces import synthetic
from kvproof.bench.work import expect
from kvproof.report.results import read
from kvproof.selftest import bench_standin as standin
from kvproof.selftest.bench_calls import ADAPTER, SMALL, full, measured, subject


def plan(*subjects: Subject, points: list[Point], capacity: tuple[int, ...] = (131_072, 0)) -> Plan:
    return Plan(subjects, points, synthetic(0, 40), capacity, True, 0)


def test_a_run_writes_samples_summary_and_table(tmp_path: Path) -> None:
    points = [
        Point("admit_prefix", SMALL["admit_prefix"]),
        Point("fork", SMALL["fork"]),
        Point("pool", {"blocks": 256}),
        Point("pool", {"blocks": 512}),
        Point("memory", {"blocks": 1000, "caching": True}),
        Point("replay", {"requests": 30}),
        Point("waste", {"steps": 500}),
    ]
    said = io.StringIO()
    console = Console(file=said, width=200)
    status = measure(plan(full(), subject(standin.Uncached), points=points), tmp_path, console, False)
    (folder,) = tmp_path.iterdir()
    found = read(folder / "bench.jsonl")
    assert status == found.footer.exit_status == 0
    assert found.header.implementation == "Standin, Uncached"
    assert found.footer.complete
    by_cell = {(s.cell, s.implementation): s for s in found.samples}
    assert by_cell["fork", "Standin"].note.startswith("unsupported")
    assert by_cell["memory", "Standin"].note.startswith("unsupported: cannot be opened")
    assert by_cell["pool_growth", "Standin"].unit == "exponent"
    replayed = [s for s in found.samples if (s.cell, s.implementation) == ("replay", "Standin")]
    assert [s.parameters["capacity_tokens"] for s in replayed] == [131_072, "unbounded"]
    for s in replayed:
        assert s.counters["hits"] == s.counters["exact_hits"] > 0
        assert s.counters["hit_rate"] <= s.counters["ceiling"]
    assert by_cell["waste", "Standin"].median == by_cell["waste", "Standin"].counters["least_percent"]
    summary = (folder / "bench.md").read_text()
    assert "## replay" in summary
    assert "Hit rate = " in summary
    assert summary.index("## Summary") < summary.index("## admit_prefix")
    assert len((folder / "bench.csv").read_text().splitlines()) == len(found.samples) + 1
    assert said.getvalue().splitlines()[-1] == f"report: {folder / 'bench.md'}"
    assert gc.isenabled()


def test_findings_make_the_status_1(tmp_path: Path) -> None:
    said = io.StringIO()
    points = [Point("evict", SMALL["evict"]), Point("replay", {"requests": 40})]
    console = Console(file=said, width=300)
    status = measure(
        plan(full(), subject(standin.Boaster), subject(standin.Fifo), points=points), tmp_path, console, True
    )
    assert status == 1
    assert "Boaster, evict(blocks=256, prompt_blocks=16): INVALID: cached tokens is" in said.getvalue()
    assert "only 0 of them were ever committed" in said.getvalue()
    assert "Standin" not in said.getvalue()
    (folder,) = tmp_path.iterdir()
    assert "## Findings" in (folder / "bench.md").read_text()


def test_a_run_without_a_number_is_not_green(tmp_path: Path) -> None:
    points = [Point("fork", SMALL["fork"])]
    assert measure(plan(full(), points=points), tmp_path, Console(file=io.StringIO()), True) == 3


class Interrupted(standin.Standin):
    def fork(self, parent: int, child: int) -> None:
        raise KeyboardInterrupt

    capabilities = standin.Standin.capabilities | {"fork"}


def test_a_run_broken_off_says_so(tmp_path: Path) -> None:
    points = [Point("evict", SMALL["evict"]), Point("fork", SMALL["fork"]), Point("pool", SMALL["pool"])]
    assert measure(plan(full(Interrupted), points=points), tmp_path, Console(file=io.StringIO()), True) == 3
    (folder,) = tmp_path.iterdir()
    found = read(folder / "bench.jsonl")
    assert not found.footer.complete
    assert [s.cell for s in found.samples] == ["evict"]
    assert gc.isenabled()


def test_a_failure_of_the_harness_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Job, point: Point, pedantic: object) -> None:
        raise ZeroDivisionError("the harness broke")

    monkeypatch.setattr(Job, "measure", broken)
    said = io.StringIO()
    points = [Point("evict", SMALL["evict"])]
    assert measure(plan(full(), points=points), tmp_path, Console(file=said, width=300), True) == 1
    assert "the harness broke" in said.getvalue() or "ZeroDivisionError" in said.getvalue()


def test_the_same_one_twice_gets_two_names(tmp_path: Path) -> None:
    assert run([ADAPTER, ADAPTER], None, [], 64, ["free"], True, 0, tmp_path, True, processes=1) == 0
    (folder,) = tmp_path.iterdir()
    names = read(folder / "bench.jsonl").header.implementation.split(", ")
    assert names[1] == names[0] + " #2"


def test_a_slow_set_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "LONGEST_SET_UP_S", 0)
    (sample,) = measured(full(), point=Point("evict", SMALL["evict"]))
    assert sample.note.startswith("unsupported: left out: the sequences it starts with")


def test_ratios_are_to_the_reference_where_it_takes_part() -> None:
    def order(*names: str) -> list[str]:
        return [s.name for s in _open(names, "manager", None, "cpu", 16)[0]]

    assert order("plain", "reference:make_uncached", "reference") == [
        "reference:make_uncached",
        "reference",
        "plain",
    ]
    assert order("plain", ADAPTER) == ["plain", ADAPTER]


def test_run_opens_an_adapter_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run([ADAPTER], None, [1_048_576], 64, ["replay"], True, 0, tmp_path, True)
    assert status == 0
    (folder,) = tmp_path.iterdir()
    (sample,) = read(folder / "bench.jsonl").samples
    assert sample.counters["evictions"] == sample.counters["exact_evictions"] > 0
    assert capsys.readouterr().out.strip().replace("\n", "") == f"report: {folder / 'bench.md'}"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"impls": ["nobody"]}, "no implementation 'nobody'"),
        ({"block_size": 24}, "divisors of 512"),
        ({"block_size": 0}, "at least 1"),
        ({"capacity": [8]}, "at least one block of 16"),
        ({"capacity": [-1]}, "at least one block of 16"),
        ({"cells": ["walk"]}, "allowed are decode_step"),
        ({"trace": Path("no-such-file")}, "no-such-file"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], named: str
) -> None:
    arguments: dict[str, Any] = {
        "impls": [ADAPTER],
        "trace": None,
        "capacity": [],
        "block_size": 16,
        "cells": None,
        "quick": True,
        "seed": 0,
        "out": tmp_path,
        "quiet": True,
    }
    assert run(**(arguments | changes)) == 2
    assert named in capsys.readouterr().out.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_wrong_and_unsupported_are_told_apart() -> None:
    with pytest.raises(Unsupported):
        subject().open(8, caching=False)
    with pytest.raises(Wrong):
        expect("x", 3, 1, 1)

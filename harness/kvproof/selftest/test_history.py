"""A history grows by a line a run, and tells a lasting change from noise."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvproof.cli import main
from kvproof.report import history
from kvproof.report.results import ResultsError, read
from kvproof.report.site import pages
from kvproof.selftest.result_files import judged, measured, past
from kvproof.stats import steps

NOISE = 0.02


def test_noise_is_no_step_and_a_step_is_found() -> None:
    rng = np.random.default_rng(5)
    false = sum(bool(steps(np.exp(rng.normal(0, NOISE, n)).tolist())) for n in (40, 60) for _ in range(200))
    assert false <= 1
    more = 0
    for up in (0.10, -0.10):
        for _ in range(30):
            series = rng.normal(0, NOISE, 40) + np.where(np.arange(40) >= 25, up, 0.0)
            found = steps(np.exp(series).tolist())
            step = min(found, key=lambda s: abs(s.index - 25))
            assert abs(step.index - 25) <= 1
            assert step.after / step.before == pytest.approx(np.exp(up), rel=0.03)
            more += len(found) - 1
    assert more <= 2


def test_noise_that_hangs_together_is_no_step() -> None:
    """A machine has slow hours: each run lies nearer to the one before it than to the others."""
    rng = np.random.default_rng(60)
    false = 0
    for _ in range(200):
        noise = [rng.normal(0, NOISE)]
        for fresh in rng.normal(0, NOISE * (1 - 0.5**2) ** 0.5, 59):
            noise.append(0.5 * noise[-1] + fresh)
        false += bool(steps(np.exp(noise).tolist()))
    assert false <= 1


def test_one_slow_run_is_no_step() -> None:
    assert steps([1.0, 1.01, 0.99, 1.0, 3.0, 1.0, 1.01, 0.99, 1.0, 1.0]) == []


def test_values_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        steps([1.0, 0.0])


def test_a_run_is_added_once(tmp_path: Path) -> None:
    judged(tmp_path / "a.jsonl", "one", "KVP-PREFIX-002")
    measured(tmp_path / "b.jsonl", ("one", "two"))
    files = [read(tmp_path / "a.jsonl"), read(tmp_path / "b.jsonl")]
    path = tmp_path / history.NAME
    assert history.append(path, files) == 3
    assert history.append(path, files) == 0
    conformance, one, two = history.read(path)
    assert conformance.failing == ("KVP-PREFIX-002",)
    assert one.points["decode_step: sequences 64, form list 0"] == 2.0
    assert two.points["decode_step: sequences 64, form list 0"] == 3.0


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / history.NAME).write_text("{}\n")
    with pytest.raises(ResultsError, match=r"history\.jsonl:1"):
        history.read(tmp_path / history.NAME)


def test_a_lasting_change_is_told_with_its_first_run(tmp_path: Path) -> None:
    runs = [past(i, 1.0 + i % 2 / 100 if i < 8 else 1.3 + i % 2 / 100) for i in range(16)]
    (change,) = history.changes(runs)
    assert change.at.started == "2026-01-09T00:00:00"
    assert str(change).startswith("one free: tokens 8: x 1.30 since 2026-01-09")
    assert history.changes([past(i, 1.0 if i < 8 else 1.3, f"cpu {i < 8}") for i in range(16)]) == []

    (tmp_path / history.NAME).write_text("".join(p.model_dump_json() + "\n" for p in runs))
    judged(tmp_path / "a.jsonl", "one")
    pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site")
    page = (tmp_path / "site" / "history.html").read_text(encoding="utf-8")
    assert "x 1.30" in page
    assert "2026-01-09" in page


def test_the_page_of_sixty_runs_tells_the_one_step(tmp_path: Path) -> None:
    """A step of 8 % in one point, none in another: command and page tell that one, at its first run."""
    noise = np.exp(np.random.default_rng(60).normal(0, NOISE, (60, 2)))
    lines = [past(run, a, fork=b * (1.08 if run >= 35 else 1)) for run, (a, b) in enumerate(noise)]
    (tmp_path / history.NAME).write_text("".join(p.model_dump_json() + "\n" for p in lines))
    changed = lines[35].started
    judged(tmp_path / "runs" / "a.jsonl", "one")
    command = ["history", "--results", str(tmp_path / "runs"), "--file", str(tmp_path / history.NAME)]
    done = CliRunner().invoke(main, command)
    assert done.output.splitlines()[-1].startswith("1 line added, 1 lasting change:"), done.output
    assert re.match(rf"one fork: tokens 8: x 1\.0[789] since {changed[:10]}", done.output)

    pages.build([tmp_path / history.NAME, tmp_path / "runs" / "a.jsonl"], tmp_path / "site")
    page = (tmp_path / "site" / "history.html").read_text(encoding="utf-8")
    told, _, charts = page.partition("<figure>")
    assert re.search(rf"<td>fork: tokens 8</td>.*x 1\.0[789]</td><td>{re.escape(changed)}</td>", told)
    assert "free: tokens 8" not in told, "no step is told where there is none"
    assert charts.count(changed) >= 2, "in both curves"


def test_the_command_adds_and_tells(tmp_path: Path) -> None:
    measured(tmp_path / "runs" / "b.jsonl", ("one",))
    command = ["history", "--results", str(tmp_path / "runs"), "--file", str(tmp_path / history.NAME)]
    done = CliRunner().invoke(main, command)
    assert done.output.startswith("1 line added, 0 lasting changes"), done.output

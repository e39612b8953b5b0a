"""`--json` of the commands, what a clone without runs shows, and files made small enough to be committed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from kvproof import progress, spec
from kvproof.__main__ import main as program
from kvproof.cli import main
from kvproof.records import Verdict
from kvproof.report.results import read
from kvproof.report.summary import summarize
from kvproof.selftest.result_files import BAD, HISTORY, WHERE, judged, measured, past


def document(status: int, *arguments: str) -> dict[str, Any]:
    """What the command prints with --json: it must be one document of the committed schema."""
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == status, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    schema = json.loads((spec.find() / "schemas" / "document.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    assert (found["command"], found["exit_status"]) == (arguments[0], status)
    return found


def test_conformance_says_what_failed_and_where_the_report_is(tmp_path: Path) -> None:
    chosen = ("--requirement", "TABLE-001", "--histories", "0", "--results", str(tmp_path))
    found = document(
        1, "conformance", "--impl", "faulty:late_at_the_edge", "--impl", "plain", *chosen, "--quiet"
    )
    bad, good = found["files"]
    assert [f["requirement"] for f in bad["failures"]] == ["KVP-TABLE-001"]
    assert bad["failures"][0]["replay"].startswith("kvproof replay ")
    assert good["verdicts"]["PASS"] == 1
    assert good["failures"] == []
    assert (Path(found["report"]) / "summary.md").is_file()


def test_bench_says_how_many_points_it_has(tmp_path: Path) -> None:
    found = document(
        0, "bench", "--impl", "plain", "--cell", "free", "--rounds", "1", "--results", str(tmp_path)
    )
    (file,) = found["files"]
    assert file["points"] > 0
    assert Path(file["path"]).parent == Path(found["report"])
    again = ["report", file["path"], "--site", str(tmp_path / "site")]
    shown = CliRunner().invoke(main, again).output
    assert "free 8,192, cache on" in shown, "its table, as after the run"
    assert CliRunner().invoke(main, [*again, "--quiet"]).output.splitlines() == shown.splitlines()[-1:]


def test_compare_and_report_say_the_same_as_without(tmp_path: Path) -> None:
    judged(tmp_path / "good.jsonl", "one")
    judged(tmp_path / "bad.jsonl", "one", BAD)
    found = document(1, "compare", str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl"))
    assert found["differences"] == [{"word": "broken", "what": f"{BAD}: PASS -> FAIL", "worse": True}]
    shown = document(0, "report", str(tmp_path / "bad.jsonl"), "--site", str(tmp_path / "site"))
    assert shown["files"][0]["failures"][0]["got"] == WHERE
    assert Path(shown["report"]) == tmp_path / "site" / "index.html"


def test_export_history_and_merge_say_where_it_is(tmp_path: Path) -> None:
    judged(tmp_path / "bad.jsonl", "one", BAD)
    exported = document(0, "export", str(tmp_path / "bad.jsonl"), "--to", str(tmp_path / "export"))
    assert Path(exported["report"]) == tmp_path / "export"
    assert any(note.startswith("bencher.json: no samples") for note in exported["notes"])
    assert exported["files"][0]["failures"][0]["got"] == WHERE

    runs = [past(run, 1 + run % 2 / 100, fork=1.3 if run > 4 else 1) for run in range(10)]
    (tmp_path / "history.jsonl").write_text("".join(p.model_dump_json() + "\n" for p in runs))
    told = document(0, "history", str(tmp_path / "bad.jsonl"), "--file", str(tmp_path / "history.jsonl"))
    assert [(d["word"], d["what"][:28]) for d in told["differences"]] == [
        ("slower", "one fork: tokens 8: x 1.30 s")
    ]

    chosen = ("--impl", "plain", "--requirement", "TABLE-001", "--histories", "0", "--quiet")
    for part in ("1/2", "2/2"):
        results = ("--results", str(tmp_path / "parts"), "--shard", part)
        CliRunner().invoke(main, ["conformance", *chosen, *results])
    whole = document(0, "merge", str(tmp_path / "parts"), "--into", str(tmp_path / "whole"))
    assert whole["files"][0]["verdicts"] == {"FAIL": 0, "PASS": 1}
    assert Path(whole["files"][0]["path"]).parent == Path(whole["report"]) == tmp_path / "whole"


def test_what_was_run_in_parts_is_shown_as_if_it_had_been_one(tmp_path: Path) -> None:
    for name, bad in (("good", ""), ("bad", BAD)):
        judged(tmp_path / f"{name}.jsonl", name, bad)
        text = (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8")
        (tmp_path / f"{name}.jsonl").write_text(text.replace('"shard":""', '"shard":"1/1"'), encoding="utf-8")
    files = [str(tmp_path / f"{name}.jsonl") for name in ("good", "bad")]
    shown = CliRunner().invoke(main, ["merge", *files, "--into", str(tmp_path / "whole")])
    assert shown.exit_code == 1, shown.output
    assert f"FAIL {BAD}" in shown.output
    assert "manager side by side: 1 good, 2 bad" in shown.output
    quiet = CliRunner().invoke(main, ["merge", *files, "--into", str(tmp_path / "whole"), "--quiet"])
    assert quiet.output.splitlines() == [
        str(tmp_path / "whole" / f"{name}.jsonl") for name in ("good", "bad")
    ]


def test_a_history_of_nothing_is_not_begun(tmp_path: Path) -> None:
    where = ["--results", str(tmp_path / "runs"), "--file", str(tmp_path / "history.jsonl")]
    done = CliRunner().invoke(main, ["history", *where])
    assert done.exit_code == 2
    assert "no result file in" in done.output
    assert not (tmp_path / "history.jsonl").exists()


def test_the_bar_is_seen_while_pytest_holds_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the file for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "terminal").open("w") as terminal, open(os.devnull, "w", encoding="utf-8") as nothing:
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress.bar() as shown:
            row = shown.add_task("reference", total=7)
            os.dup2(nothing.fileno(), terminal.fileno())  # as pytest does for the time of a test
            monkeypatch.setattr(sys, "stderr", nothing)
            shown.update(row, completed=3)
            shown.refresh()
    assert "3/7" in (tmp_path / "terminal").read_text(encoding="utf-8")


def test_wrong_usage_has_no_document(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["report", "--results", str(tmp_path / "runs"), "--json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "no conformance file" in done.stderr


def test_what_is_broken_off_at_once_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before there is anything to measure, and while the program is still being read."""

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvproof.bench.run._open", broken)
    done = CliRunner().invoke(main, ["bench", "--results", str(tmp_path)])
    assert (done.exit_code, done.stderr) == (3, "broken off from the keyboard\n")
    document(3, "bench", "--results", str(tmp_path))
    monkeypatch.delattr("kvproof.cli.main")
    monkeypatch.setattr("kvproof.cli.__getattr__", broken, raising=False)
    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 3


def test_without_a_run_the_committed_results_are_shown(tmp_path: Path) -> None:
    (tmp_path / "baselines" / "here").mkdir(parents=True)
    judged(tmp_path / "baselines" / "here" / "one.jsonl", "one")
    (tmp_path / "thirdparty" / "two").mkdir(parents=True)
    judged(tmp_path / "thirdparty" / "two" / "manager.jsonl", "two", BAD)
    judged(tmp_path / "stray.jsonl", "three")
    command = ["report", "--results", str(tmp_path / "runs"), "--site", str(tmp_path / "site")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "the pages show the 2 committed files instead" in done.output
    overview = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert overview.index("two-manager.html") < overview.index("one-manager.html"), "what fails comes first"
    assert "three" not in overview


def test_a_slim_file_shows_the_same_failure(tmp_path: Path) -> None:
    judged(tmp_path / "whole.jsonl", "one", BAD)
    done = CliRunner().invoke(
        main, ["slim", str(tmp_path / "whole.jsonl"), "--to", str(tmp_path / "slim.jsonl")]
    )
    assert done.exit_code == 0, done.output
    whole, slim = (summarize(read(tmp_path / f"{n}.jsonl")) for n in ("whole", "slim"))
    assert slim.verdicts == whole.verdicts
    (failure,) = slim.failures
    assert (failure.result.history, failure.result.observed) == (
        HISTORY,
        whole.failures[0].result.observed,
    )
    assert failure.result.replay == f"kvproof conformance --impl one --profile manager --requirement {BAD}"
    assert slim.file.cases == ()
    again = CliRunner().invoke(
        main, ["slim", str(tmp_path / "slim.jsonl"), "--to", str(tmp_path / "slim.jsonl")]
    )
    assert again.exit_code == 2
    assert "is the file to be read" in again.output


def test_a_benchmark_is_not_made_smaller(tmp_path: Path) -> None:
    measured(tmp_path / "bench.jsonl", ("one",))
    done = CliRunner().invoke(main, ["slim", str(tmp_path / "bench.jsonl"), "--to", str(tmp_path / "x")])
    assert done.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_a_known_failure_is_drawn_too(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text("from kvproof_impls.faulty.tables import late_at_the_edge as make\n", encoding="utf-8")
    known = '[[known]]\nrequirement = "KVP-TABLE-001"\nreason = "planted"\n'
    (tmp_path / "known.toml").write_text(known, encoding="utf-8")
    chosen = ("--requirement", "TABLE-001", "--histories", "0", "--results", str(tmp_path / "runs"))
    found = CliRunner().invoke(main, ["conformance", "--impl", str(adapter), *chosen, "--quiet"])
    (file,) = (tmp_path / "runs").rglob("*.jsonl")
    (failure,) = summarize(read(file)).known
    assert failure.result.verdict is Verdict.XFAIL, found.output
    assert len(failure.result.observed) == len(failure.result.history) > 0
    assert failure.result.replay.startswith("kvproof replay ")

"""The command line: replay of a saved failure, compare, report, spec, impls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof import spec
from kvproof.cli import main
from kvproof.options import profiles as profiles_of

ROGUES = Path(__file__).with_name("rogues.py")


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """The folder of a run in which the planted fault was found."""
    done = run(
        "conformance", "--impl", "faulty:late_at_the_edge", "--requirement", "TABLE-001", "--histories", "0",
        "--results", str(tmp_path / "runs"),
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    return next((tmp_path / "runs").iterdir())  # a report reads all that lies beside it


def test_a_failure_is_saved_and_replays(failing: Path) -> None:
    vector = next((failing / "failures").glob("*.json"))
    assert json.loads(vector.read_text())["aim"] == ["KVP-TABLE-001"]
    bad = run("replay", str(vector), "--impl", "faulty:late_at_the_edge")
    assert bad.exit_code == 1
    assert "KVP-TABLE-001: expected" in bad.output
    again = run("replay", str(vector))
    assert again.output == bad.output, "it is replayed on who showed it"
    good = run("replay", str(vector), "--impl", "plain", "--impl", "reference")
    assert good.exit_code == 0, good.output
    assert good.output.count("no finding") == 2


def test_a_file_that_is_no_vector_says_why(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"id": "x"}')
    done = run("replay", str(path))
    assert done.exit_code == 2
    assert "not a vector: aim" in done.output


def test_compare_names_what_broke_and_what_was_fixed(failing: Path, tmp_path: Path) -> None:
    bad = next(failing.glob("*.jsonl"))
    run(
        "conformance",
        "--impl",
        "plain",
        "--requirement",
        "TABLE-001",
        "--histories",
        "0",
        "--results",
        str(tmp_path / "p"),
    )
    good = next((tmp_path / "p").rglob("*.jsonl"))
    broken = run("compare", str(good), str(bad))
    assert broken.exit_code == 1
    assert "broken  KVP-TABLE-001: PASS -> FAIL" in broken.output
    assert "two implementations: plain before, faulty:late_at_the_edge after" in broken.output
    fixed = run("compare", str(bad), str(good))
    assert fixed.exit_code == 0
    assert "fixed   KVP-TABLE-001: FAIL -> PASS" in fixed.output
    assert run("compare", str(good), str(good)).output == "0 verdicts differ; 0 for the worse in all\n"


def test_report_shows_the_newest_run(failing: Path) -> None:
    done = run("report", "--results", str(failing.parent), "--site", str(failing.parent / "site"))
    assert done.exit_code == 0
    assert "FAIL KVP-TABLE-001" in done.output
    empty = run("report", "--results", str(failing / "nothing"))
    assert empty.exit_code == 2
    assert "run `kvproof conformance` first" in empty.output


def test_spec_prints_one_and_names_near_misses() -> None:
    assert "KVP-POOL-001" in run("spec", "pool-001").output
    wrong = run("spec", "POOL-0001")
    assert wrong.exit_code == 2
    assert "POOL-001" in wrong.output
    assert run("spec", "--lint").exit_code == 0


def test_impls_lists_what_is_here() -> None:
    listed = run("impls").output
    assert "reference" in listed
    assert "--checkout PATH" in listed


def test_wrong_requirement_is_wrong_usage(tmp_path: Path) -> None:
    done = run("conformance", "--requirement", "NO-SUCH", "--results", str(tmp_path))
    assert done.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["conformance", "bench"])
def test_a_folder_that_cannot_be_made_is_one_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cell = ("--cell", "decode_step") if command == "bench" else ()
    done = run(command, "--impl", "plain", *cell, "--results", str(tmp_path / "file" / "runs"))
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    assert line.startswith(f"Error: --results {tmp_path}")
    assert line.endswith("give a folder that can be written")


def test_what_hangs_is_saved_and_replays(tmp_path: Path) -> None:
    where = f"{ROGUES}:hangs"
    done = run(
        "conformance", "--impl", where, "--requirement", "TABLE-001", "--histories", "0",
        "--call-limit", "0.1", "--results", str(tmp_path),
    )  # fmt: skip
    (vector,) = tmp_path.rglob("failures/*.json")
    assert f"replay: kvproof replay {vector}" in done.output
    assert json.loads(vector.read_text())["implementation"] == where


def test_a_vector_of_a_scheduler_replays_on_the_scheduler() -> None:
    vector = spec.find() / "vectors" / "preempt" / "PREEMPT-002-ping_pong.json"
    good = run("replay", str(vector), "--impl", "plain")
    assert good.exit_code == 0, good.output
    assert "plan 0: " in good.output
    bad = run("replay", str(vector), "--impl", "faulty:ping_pong")
    assert bad.exit_code == 1
    assert "KVP-PREEMPT-002: expected" in bad.output


def test_help_names_the_cells() -> None:
    text = " ".join(run("bench", "--help").output.split())
    assert "decode_step, admit_cold" in text
    assert "scheduler_step" in text


@pytest.mark.parametrize(
    ("chosen", "named", "profiles"),
    [
        ([], False, ["manager", "scheduler", "ranks", "kernel"]),
        ([], True, ["manager"]),
        (["SCHED-004"], True, ["scheduler"]),
        (["KERN", "POOL-001"], False, ["manager", "kernel"]),
    ],
)
def test_what_is_asked_for_decides_the_profile(chosen: list[str], named: bool, profiles: list[str]) -> None:
    index = spec.load()
    ids = [r.id for name in chosen for r in index.select(name)]
    assert list(profiles_of(index, ids, named)) == profiles


def test_our_own_are_judged_in_all_profiles(tmp_path: Path) -> None:
    done = run(
        "conformance", "--requirement", "POOL-001", "--requirement", "SCHED-001", "--histories", "0",
        "--results", str(tmp_path),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = [line.split()[:2] for line in done.output.splitlines() if line.startswith(("reference", "plain"))]
    assert rows == [
        ["reference", "manager"],
        ["plain", "manager"],
        ["reference:make_scheduler", "scheduler"],
        ["plain:make_scheduler", "scheduler"],
    ]


@pytest.mark.parametrize(("others", "status"), [((), 3), (("--impl", "plain"), 0)])
def test_what_is_not_here_harms_the_status_only_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...], status: int
) -> None:
    monkeypatch.delenv("KVPROOF_CHECKOUT", raising=False)
    asked = ("--requirement", "POOL-001", "--histories", "0", "--results", str(tmp_path))
    done = run("conformance", "--impl", "nano_vllm", *others, *asked)
    assert done.exit_code == status, done.output
    assert "not judged: what it needs is not here" in done.output

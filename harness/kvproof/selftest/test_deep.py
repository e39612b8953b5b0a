"""`--deep` and `--budget`: what is added, what is cut, and a rare fault found without directed cases."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof import cli, spec
from kvproof.conformance.plugin import Unmet
from kvproof.conformance.replay import load_vector
from kvproof.conformance.session import MOST_HANGS, Session, Settings
from kvproof.conformance.shortest import shortest
from kvproof.conformance.test_deep import test_search as search
from kvproof.histories.machine import explore, manager_cases, scheduler_cases
from kvproof.records import Case, Verdict
from kvproof.report.results import ResultFile, read
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import session_of
from kvproof.subjects import find
from kvproof.subjects.host import Worker

ROGUES = Path(__file__).with_name("rogues.py")


def test_the_search_finds_a_rare_fault_and_it_is_shrunk(tmp_path: Path) -> None:
    subject = InProcess("faulty:stale_key")
    settings = Settings(deep=True, histories=2000, folder=tmp_path)
    session = Session(subject, spec.load(), settings, subject.describe(8, 4))
    for chunk in range(8):
        with contextlib.suppress(Unmet):
            search(chunk, session)
        if "KVP-EVICT-002" in session.failing:
            break
    assert "KVP-EVICT-002" in session.failing
    session.failing, session.lost = {"KVP-EVICT-002": session.failing["KVP-EVICT-002"]}, {}
    (result,) = shortest(session)
    assert len(result.history) <= 15
    assert load_vector(Path(result.vector)).history == result.history


@pytest.mark.parametrize("where", ["reference", "plain"])
def test_written_histories_are_fair_to_sound_implementations(where: str) -> None:
    for profile, factory, write in (
        ("manager", "make", manager_cases),
        ("scheduler", "make_scheduler", scheduler_cases),
    ):
        session = session_of(InProcess(f"{where}:{factory}"), profile)
        bad: list[object] = []

        def judge(case: Case, session: Session = session, bad: list[object] = bad) -> None:
            outcome, findings = session.run(case)
            bad.extend(findings)
            bad.extend([outcome] if outcome.end != "complete" else [])

        explore(write(session.gates), judge, seed=1, examples=60)
        assert not bad, bad[:2]


def test_one_seed_writes_one_set_of_histories_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn: list[list[Case]] = [[], [], []]
    for seed, cases in zip((3, 3, 4), drawn, strict=True):
        explore(manager_cases({"fork", "defer", "steps"}), cases.append, seed=seed, examples=10)
    assert drawn[0] == drawn[1] != drawn[2]
    assert not list(tmp_path.iterdir())


def conformance(folder: Path, *more: str) -> tuple[int, ResultFile | None, str]:
    arguments = ["conformance", "--impl", f"{ROGUES}:bare", "--results", str(folder), *more]
    arguments += ["--requirement", "POOL-001", "--requirement", "TABLE-001"]  # nothing that is timed
    done = CliRunner().invoke(cli.main, arguments)
    files = list(folder.rglob("*.jsonl"))
    return done.exit_code, read(files[0]) if files else None, done.output


def test_deep_adds_long_and_searched_histories(tmp_path: Path) -> None:
    status, file, output = conformance(tmp_path, "--deep", "--histories", "4")
    assert status == 0, output
    assert file is not None
    names = [c.id for c in file.cases]
    assert sum(n.startswith("random/") for n in names) == 40
    assert sum(n.startswith("long/") for n in names) == 4
    long = [c for c in file.cases if c.id.startswith("long/")]
    assert all(c.operations > 120 for c in long)
    assert file.footer.cases >= len(names) + 20, "those that the search has run are counted"
    assert f"{file.footer.cases} cases" in output


def test_budget_cuts_random_histories_only(tmp_path: Path) -> None:
    _, whole, _ = conformance(tmp_path / "whole", "--histories", "0")
    status, cut, output = conformance(tmp_path / "cut", "--deep", "--histories", "50", "--budget", "0")
    assert status == 0, output
    assert whole is not None
    assert cut is not None
    assert cut.footer.cases == whole.footer.cases > 10
    assert not [c for c in cut.cases if c.id.startswith(("random/", "long/", "search/"))]


def test_the_search_gives_up_a_subject_that_hangs(tmp_path: Path) -> None:
    started = time.monotonic()
    with Worker(find(f"{ROGUES}:hangs"), call_limit=0.1) as worker:
        settings = Settings(deep=True, histories=4000, folder=tmp_path)
        session = Session(worker, spec.load(), settings, worker.describe(8, 4))
        with contextlib.suppress(Unmet):
            search(0, session)
    assert session.hangs == MOST_HANGS
    assert {r.verdict for r in session.results} == {Verdict.TIMEOUT}
    assert time.monotonic() - started < 60


def test_deep_without_hypothesis_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    status, file, output = conformance(tmp_path, "--deep")
    assert (status, file) == (2, None)
    assert "pip install hypothesis" in output

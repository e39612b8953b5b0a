"""known.toml: what it excuses, for how long, and what it may not say."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof import ledger
from kvproof.cli import main
from kvproof.conformance.citing import DRAWN, case_names
from kvproof.records import SHORTEST, Result, Verdict
from kvproof.report.results import ResultFile, read
from kvproof.report.summary import summarize

ADAPTER = '''
from kvproof.selftest.rogues import Bare


class Careless(Bare):
    """A negative id is as good as any."""

    def add(self, seq, tokens):
        return super().add(seq if seq >= 0 else 1000 - seq, tokens)
'''
ENTRY = '[[known]]\nrequirement = "KVP-ERR-001"\nreason = "to be refused some day"\n'
NEGATIVE = 'case = "err/negative-id"\n'


def conformance(folder: Path, known: str, factory: str = "Careless") -> tuple[int, ResultFile | None, str]:
    """Exit status, result file and output of a run on ERR-001 with this known.toml."""
    (folder / "adapter.py").write_text(ADAPTER, encoding="utf-8")
    (folder / "known.toml").write_text(known, encoding="utf-8")
    done = CliRunner().invoke(
        main,
        ["conformance", "--impl", f"{folder / 'adapter.py'}:{factory}", "--requirement", "ERR-001",
         "--histories", "5", "--results", str(folder / "out")],
    )  # fmt: skip
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    files = list((folder / "out").rglob("*.jsonl"))
    return done.exit_code, read(files[0]) if files else None, done.output


def test_without_an_entry_it_fails(tmp_path: Path) -> None:
    status, file, output = conformance(tmp_path, "")
    assert status == 1, output
    assert file is not None
    assert summarize(file).verdicts["KVP-ERR-001"] is Verdict.FAIL


@pytest.mark.parametrize("expires", ["", 'expires = "2999-01-01"\n', "expires = 2999-01-01\n"])
def test_a_known_failure_does_not_fail_the_run(tmp_path: Path, expires: str) -> None:
    status, file, output = conformance(tmp_path, ENTRY + expires)
    assert status == 0, output
    assert file is not None
    assert summarize(file).verdicts["KVP-ERR-001"] is Verdict.XFAIL
    assert "known  KVP-ERR-001" in output
    assert "to be refused some day" in output


def test_an_expired_entry_excuses_nothing_and_says_so(tmp_path: Path) -> None:
    status, file, output = conformance(tmp_path, ENTRY + 'expires = "2020-02-29"\n')
    assert status == 1, output
    assert file is not None
    assert summarize(file).verdicts["KVP-ERR-001"] is Verdict.FAIL
    assert "known.toml excused this until 2020-02-29: to be refused some day" in output


def test_an_entry_for_one_case_excuses_no_other(tmp_path: Path) -> None:
    status, file, output = conformance(tmp_path, ENTRY + NEGATIVE)
    assert status == 1, output  # a vector shows the same failure
    assert file is not None
    verdicts = {r.case: r.verdict for r in file.results}
    assert verdicts["err/negative-id"] is Verdict.XFAIL
    others = {name for name, v in verdicts.items() if v is Verdict.FAIL}
    assert others == {"err/ERR-001-negative_id_accepted", f"err/ERR-001-negative_id_accepted{SHORTEST}"}
    vector = ENTRY + 'case = "err/ERR-001-negative_id_accepted"\n'
    (tmp_path / "both").mkdir()
    status, _, output = conformance(tmp_path / "both", ENTRY + NEGATIVE + vector)
    assert status == 0, output


@pytest.mark.parametrize("more", ["", NEGATIVE, 'expires = "2020-01-01"\n'])
def test_a_stale_entry_fails_the_run(tmp_path: Path, more: str) -> None:
    status, file, output = conformance(tmp_path, ENTRY + more, "Bare")
    assert status == 1, output
    assert file is not None
    assert summarize(file).verdicts["KVP-ERR-001"] is Verdict.XPASS
    assert "known.toml expects a failure that no longer comes" in output


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ("[[known]\n", "not TOML"),
        ("[[knwon]]\n", "may hold [[known]] tables only; got knwon"),
        ("known = 1\n", "may hold [[known]] tables only"),
        ('[[known]]\nrequirement = "KVP-ERR-001"\n', "entry 1: needs requirement and reason"),
        (ENTRY + "until = 1\n", "entry 1: needs requirement and reason, may have case and expires"),
        (ENTRY + 'case = "err/negative-di"\n', "no case 'err/negative-di'; near it: err/negative-id"),
        (ENTRY.replace("ERR-001", "ERR-901"), "entry 1: no requirement 'KVP-ERR-901'; near it: KVP-ERR-001"),
        (ENTRY + 'expires = "soon"\n', "expires is a day, \"YYYY-MM-DD\"; got 'soon'"),
    ],
)
def test_a_wrong_ledger_is_wrong_usage(tmp_path: Path, known: str, words: str) -> None:
    status, file, output = conformance(tmp_path, known)
    assert (status, file) == (2, None), output
    assert words in " ".join(output.split())


def test_the_last_day_still_excuses(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ENTRY + 'expires = "2026-06-30"\n', encoding="utf-8")
    failed = Result(case="x", requirement="KVP-ERR-001", verdict=Verdict.FAIL, reason="was accepted")
    for day, verdict in ((30, Verdict.XFAIL), (31, Verdict.FAIL)):
        today = date(2026, 6, 30) if day == 30 else date(2026, 7, 1)
        known = ledger.load(path, {"KVP-ERR-001"}, (), DRAWN, today)
        settled = ledger.settle(failed, known)
        assert settled.verdict is verdict
        assert "was accepted" in (settled.got if verdict is Verdict.XFAIL else settled.reason), "is not lost"


def test_drawn_cases_may_be_named_and_what_did_not_run_is_not_stale(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(ENTRY + 'case = "random/17"\n', encoding="utf-8")
    (entry,) = ledger.load(path, {"KVP-ERR-001"}, (), re.compile(r"random/\d+"))
    assert ledger.stale([], [entry]) == []
    unsupported = Result(case="random/17", requirement="KVP-ERR-001", verdict=Verdict.UNSUPPORTED)
    assert ledger.stale([unsupported], [entry]) == []


@pytest.mark.parametrize("profile", ["manager", "scheduler"])
def test_every_case_of_a_run_has_a_name_that_a_ledger_may_use(tmp_path: Path, profile: str) -> None:
    done = CliRunner().invoke(
        main,
        ["conformance", "--impl", "plain", "--profile", profile, "--histories", "5", "--quiet",
         "--results", str(tmp_path)],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    file = read(next(tmp_path.rglob("*.jsonl")))
    names = {r.case.removesuffix(SHORTEST) for r in file.results} | {c.id for c in file.cases}
    assert not {n for n in names if n not in case_names() and not DRAWN.fullmatch(n)}

"""Third parties that pip installs: what impl.toml says of them, and known failures, which no run may lose."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tomllib
from pathlib import Path

import pytest

from kvproof import ledger, spec
from kvproof.conformance.citing import DRAWN, case_names
from kvproof.oracle.scheduling import SchedulerFacts, SchedulerModel
from kvproof.records import Result, Verdict
from kvproof.report.results import read
from kvproof.subjects import find
from kvproof.subjects.find import _folders, _version

THEIRS = {
    name: facts
    for name, folder in _folders().items()
    if "environment" in (facts := tomllib.loads((folder / "impl.toml").read_text(encoding="utf-8")))
}
PAGES = Path(__file__).parents[3] / "results" / "thirdparty"


def test_a_version_is_read_from_what_is_installed() -> None:
    assert _version({"distribution": "numpy", "version": "1"}) == importlib.metadata.version("numpy")
    assert _version({"distribution": "no-such-thing", "version": "1.2"}) == "1.2"
    assert _version({}) == ""


@pytest.mark.parametrize("name", THEIRS)
def test_who_lacks_one_is_told_the_command(name: str) -> None:
    missing = find(name).missing()
    absent = [m for m in THEIRS[name]["requires"] if importlib.util.find_spec(m) is None]
    for module in absent:
        assert f"nox -s thirdparty -- {name}" in missing[module]
    assert all(isinstance(line, list) and line for line in THEIRS[name]["environment"])


def test_known_failures_are_of_this_suite() -> None:
    requirements, cases = spec.load().requirements, case_names()
    for name in THEIRS:
        entries = ledger.load(_folders()[name] / "known.toml", requirements, cases, DRAWN)
        assert all(len(entry.reason) > 20 for entry in entries), name


@pytest.mark.parametrize("path", sorted(PAGES.glob("*/*.jsonl")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_failure_on_record_is_explained(path: Path) -> None:
    file = read(path)
    bad = {Verdict.FAIL, Verdict.ERROR, Verdict.TIMEOUT, Verdict.XPASS}
    must = {r.id for r in file.header.requirements if r.level == "MUST"}
    left = {r.requirement for r in file.results if r.verdict in bad and r.requirement in must}
    page = (path.parent.parent / f"{path.parent.name}.md").read_text(encoding="utf-8")
    assert file.footer is not None
    assert not {r for r in left if r not in page}


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.ERROR, Verdict.TIMEOUT])
def test_a_known_defect_may_show_as_an_exception_or_a_hang(verdict: Verdict) -> None:
    known = [ledger.Known("KVP-FREE-001", "its count goes below zero")]
    result = Result(case="free/release-twice", requirement="KVP-FREE-001", verdict=verdict)
    settled = ledger.settle(result, known)
    assert settled.verdict is Verdict.XFAIL
    passed = Result(case="free/twice", requirement="KVP-FREE-001", verdict=Verdict.PASS)
    assert ledger.stale([passed, settled], known) == []
    assert [r.verdict for r in ledger.stale([passed], known)] == [Verdict.XPASS]


def test_a_plan_in_which_equal_blocks_were_merged_shares_none_of_the_old_ones() -> None:
    model = SchedulerModel(SchedulerFacts(num_blocks=8, block_size=3, max_seqs=4, max_tokens=16))
    old = model.requests[1] = model.request(1, [1, 2, 2, 2], {})
    old.state, old.table, old.computed = "running", (5, 4), 4
    assert model.shared([5], {}) == 3
    assert model.shared([5], {1: (7, 4)}) == 0  # its block 5 was given back, and is new to another

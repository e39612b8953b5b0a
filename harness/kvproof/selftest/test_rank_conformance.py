"""The histories of ranks over real processes: what the reference survives, and what is found in others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvproof.checks.ranks import judge_ranks
from kvproof.contract import RankGone
from kvproof.histories.directed import cases
from kvproof.histories.directed.ranks import Ranks, add, decode, ends
from kvproof.histories.rank_faults import rank_faults
from kvproof.records import Case, Finding, Observation, Verdict
from kvproof.report.results import read
from kvproof.subjects.calls import no_clock
from kvproof.subjects.find import find
from kvproof.subjects.rank_processes import GroupFactory, ProcessNetwork
from kvproof.subjects.worker import run_case

dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo"),
]
DIRECTED = {case.id: case for case in cases() if case.pools}
FAULTY = "kvproof.selftest.faulty_rank_processes"
KILLS = {
    "applied_when_asked": ("tp/refusing-2", "KVP-TP-003"),
    "epochs_not_settled": ("tp/killed-0-5", "KVP-TP-003"),
    "damage_taken": ("tp/message-damage-37", "KVP-TP-004"),
    "repeated_commit_applied": ("tp/message-drop", "KVP-TP-004"),
    "waits_for_the_dead": ("tp/killed-1-1", "KVP-TP-005"),
}
"""Fault -> a case that shows it, and by which requirement."""


@pytest.fixture(scope="module")
def reference() -> Iterator[GroupFactory]:
    factory = GroupFactory("reference:make_rank_process")
    yield factory
    for member in factory.crew.idle:
        member.end()


def judged(make: GroupFactory, case: Case) -> tuple[list[Observation], list[Finding]]:
    seen = run_case(make, case, no_clock)
    return seen, judge_ranks(case, seen)


SURVIVED = ("killed-0-5", "killed-2-2", "stopped-1-2", "stopped-and-driver-killed-8", "message-behind")


@pytest.mark.parametrize("name", [f"tp/{name}" for name in SURVIVED])
def test_the_reference_ends_each_fault_in_the_right_state(name: str, reference: GroupFactory) -> None:
    seen, findings = judged(reference, DIRECTED[name])
    assert not findings
    assert len(seen) == len(DIRECTED[name].history)
    assert seen[-1].outcome == "ok"
    ended = [o for o in seen if o.value["dead"] or o.value["stopped"]]
    assert bool(ended) == ("message" not in name)


def test_processes_and_the_simulation_see_the_same(reference: GroupFactory) -> None:
    """Without faults every answer, table structure and token is alike."""
    case = DIRECTED["tp/resume-after-eviction"]
    simulated = run_case(find("reference:make_ranks_own").factory(), case, no_clock)
    real, findings = judged(reference, case)
    assert not findings
    for one, other in zip(simulated, real, strict=True):
        assert one.outcome == other.outcome
        assert one.value["results"] == other.value["results"]
        assert one.value["state"] == other.value["state"]


def test_processes_serve_one_history_after_another(reference: GroupFactory) -> None:
    """Only those that a history has ended are started anew."""
    judged(reference, DIRECTED["tp/steps-3"])
    before = {member.process.pid for member in reference.crew.idle}
    judged(reference, DIRECTED["tp/steps-3"])
    assert {member.process.pid for member in reference.crew.idle} == before
    judged(reference, DIRECTED["tp/killed-2-2"])
    assert len(before - {member.process.pid for member in reference.crew.idle}) == 1


def test_steps_when_nobody_is_left_are_judged(reference: GroupFactory) -> None:
    h = Ranks().step(add(0, 5)).step(*decode(0), faults=[ends(1, 1), ends(0, 1)]).form().step(*decode(0))
    seen, findings = judged(reference, h.form().step(*decode(0)).ranks("nobody", (), (9, 9), 4))
    assert not findings
    assert [o.outcome for o in seen] == ["ok", "RankGone", "RankLost", "RankGone", "RankLost", "RankGone"]


def test_eight_ranks_in_a_random_history(reference: GroupFactory) -> None:
    case = next(c for c in (rank_faults(s, (), (3, 5)) for s in range(99)) if len(c.pools) == 8)
    seen, findings = judged(reference, case)
    assert not findings
    assert len(seen) == len(case.history)


def test_an_idle_group_lives_and_a_stopped_driver_is_noticed(reference: GroupFactory) -> None:
    network = ProcessNetwork(())
    network.timeout = 1.5
    group = reference((8, 9, 8), 4, network)
    try:
        group.step([("add", 0, [1])])
        time.sleep(2 * network.timeout)
        assert group.step([("append", 0, [2])]) == [None]
        group.members[0].signal("SIGSTOP")
        with pytest.raises(RankGone):
            group.step([("append", 0, [3])])
        assert list(group.lost(1)) == list(group.lost(2)) == [0]
        group.form()
        assert group.driver == 1
        assert group.epoch(1) == group.epoch(2) == 2
        group.step([("append", 0, [3])])
        assert len(group.table(2, 0)) == 1
    finally:
        group.close()


@pytest.mark.parametrize("name", KILLS)
def test_a_planted_fault_is_found_in_processes(name: str) -> None:
    case, requirement = KILLS[name]
    make = GroupFactory(f"{FAULTY}:{name}")
    try:
        _, findings = judged(make, DIRECTED[case])
        assert requirement in {f.requirement for f in findings}
    finally:
        for member in make.crew.idle:
            member.end()


def test_a_process_that_raises_is_an_error_not_a_hang() -> None:
    make = GroupFactory(f"{FAULTY}:dies_in_forming")
    seen = run_case(make, DIRECTED["tp/killed-2-2"], no_clock)
    assert seen[-1].outcome == "error"
    assert "rank 1" in seen[-1].detail
    for member in make.crew.idle:
        member.end()


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[find.__module__], "_importable", lambda module: module != "torch")
    assert find("reference:make_rank_process").missing() == {"torch": "pip install torch"}
    assert find("reference:make_ranks").missing() == {}


def test_under_torchrun(tmp_path: Path) -> None:
    """Its ranks are judged as they are: two of them, none ends."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    asked = ["-m", "kvproof.conformance.torchrun", "--requirement", "TP-001", "--requirement", "TP-006"]
    command = [*torchrun, *asked, "--histories", "0", "--quiet", "--results", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    (path,) = tmp_path.glob("*/reference_make_rank_process.jsonl")
    verdicts = {r.requirement: r.verdict for r in read(path).results if r.case == "tp/hit-at-resume"}
    assert verdicts == {"KVP-TP-006": Verdict.PASS}

"""Every planted fault dies by a test of its own requirement; sound implementations pass everything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from kvproof import spec
from kvproof.histories.arrivals import arrivals
from kvproof.histories.build import History
from kvproof.histories.directed import cases
from kvproof.histories.rank_faults import rank_faults
from kvproof.histories.seeded import seeded
from kvproof.records import Case, Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_kernels import kernel_faults
from kvproof.selftest.kill_matrix import Kill, clean_cases, faults, judge_fault, markdown, session_of

MATRIX = Path(__file__).parents[3] / "results" / "kill-matrix.md"
DRAWN: dict[str, Callable[[int, Iterable[str]], Case]] = {
    "manager": seeded,
    "scheduler": arrivals,
    "ranks": rank_faults,
}
"""Random histories by profile."""
WITHOUT_FAULT = {"KVP-KERN-011": "not runnable here: a graph is captured on a GPU"}
"""Requirements without a planted fault, each with the reason."""


@pytest.fixture(scope="module")
def clean() -> set[str]:
    return clean_cases()


@pytest.fixture(scope="module")
def kills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Collects the matrix, from other processes too; the last one to end finds every fault and writes it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kills"
    folder.mkdir(exist_ok=True)
    yield folder
    found = [Kill(**json.loads(p.read_text(encoding="utf-8"))) for p in sorted(folder.glob("*.json"))]
    if len(found) == len(faults()) and MATRIX.parent.is_dir():
        MATRIX.write_text(markdown(found), encoding="utf-8")


@pytest.mark.parametrize("name", sorted(faults()))
def test_fault_dies_by_its_own_requirement(name: str, clean: set[str], kills: Path) -> None:
    if name in kernel_faults():
        pytest.importorskip("torch")
    kill = judge_fault(name, clean)
    (kills / f"{name}.json").write_text(json.dumps(asdict(kill)), encoding="utf-8")
    assert kill.dead, f"{name} ({kill.text}) survives {kill.requirement}; killed by {sorted(kill.killers)}"


@pytest.mark.parametrize(
    ("profile", "where"),
    [
        ("manager", "reference:make"),
        ("manager", "reference:make_uncached"),
        ("manager", "reference:make_reserved"),
        ("manager", "plain:make"),
        ("scheduler", "reference:make_scheduler"),
        ("scheduler", "reference:make_scheduler_uncached"),
        ("scheduler", "reference:make_scheduler_swap"),
        ("scheduler", "reference:make_scheduler_priority"),
        ("scheduler", "plain:make_scheduler"),
        ("ranks", "reference:make_ranks"),
        ("ranks", "reference:make_ranks_own"),
        ("ranks", "plain:make_ranks"),
    ],
)
def test_sound_implementation_has_no_finding(profile: str, where: str) -> None:
    session = session_of(InProcess(where), profile)
    draw = DRAWN[profile]
    for case in cases():
        if case.profile == profile:
            session.check(case)
    for seed in range(300):
        session.check(draw(seed, session.gates))
    bad = [r for r in session.results if r.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED)]
    assert not bad, bad[:3]
    assert sum(r.verdict is Verdict.PASS for r in session.results) > 30


def test_every_active_requirement_has_a_planted_fault() -> None:
    active = {r.id for r in spec.load().requirements.values() if r.status == "active"}
    planted = {f.requirement for f in faults().values()}
    assert active - planted == set(WITHOUT_FAULT)
    assert planted <= active


BUSY = """
from kvproof.selftest.rogues import Bare


class Busy(Bare):
    def append(self, seq, tokens):
        while len(self.tables[seq]) == 2:
            pass
        super().append(seq, tokens)
"""


def test_a_fault_that_hangs_is_stopped_and_keeps_what_it_showed(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY, encoding="utf-8")
    subject = InProcess(f"{tmp_path / 'busy.py'}:Busy", limit=0.1)
    history = History()
    history.op("add", seq=0, tokens=range(3))
    history.op("append", seq=0, tokens=[7, 8])
    history.op("append", seq=0, tokens=[9])
    outcome = subject.run(history.case("pool/busy", "POOL-001", 8, 4))
    assert (outcome.end, outcome.step, len(outcome.observations)) == ("timeout", 2, 2)
    assert outcome.observations[1].tables[0] == (7, 6)

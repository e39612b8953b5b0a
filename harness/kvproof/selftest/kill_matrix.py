"""Which requirement kills which planted fault: `python -m kvproof.selftest.kill_matrix [FAULT ...]`.

A fault is killed by R if a case in which the reference has no finding gives one that names R.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvproof import spec
from kvproof.conformance import test_apart, test_growth, test_scheduler
from kvproof.conformance.look import Driven, first_look
from kvproof.conformance.plugin import Unmet
from kvproof.conformance.session import Session, Settings
from kvproof.histories.directed import cases
from kvproof.histories.shrink import shrink
from kvproof.records import Case, Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_kernels import killers_of
from kvproof.subjects import find
from kvproof.subjects.host import Worker

FAULTY = "kvproof_impls.faulty.adapter"
CALL_LIMIT = 1.0
"""Seconds: a planted fault that hangs is soon given up."""
SOUND = {
    "manager": "reference:make",
    "scheduler": "reference:make_scheduler",
    "ranks": "reference:make_ranks",
}
"""Who has no finding, by profile."""


@dataclass(frozen=True)
class Kill:
    """What became of one planted fault."""

    name: str
    requirement: str
    text: str
    model: str
    killers: dict[str, int]
    """Requirement -> how many cases named it."""
    operations: int | None
    """Length of the shortest history found for its own requirement; None where there is no history."""

    @property
    def dead(self) -> bool:
        return self.requirement in self.killers


def faults() -> dict[str, Any]:
    """The planted faults, by name; opened like any implementation."""
    return dict(importlib.import_module(FAULTY).FAULTS)


def session_of(worker: Driven, profile: str = "manager") -> Session:
    return Session(worker, spec.load(), Settings(profile=profile), first_look(worker, profile))


def special_tests(requirement: str) -> list[Any]:
    """Tests without a history that cite the requirement."""
    found = []
    for module in (test_growth, test_apart, test_scheduler):
        for name, test in vars(module).items():
            marks = [m for m in getattr(test, "pytestmark", []) if m.name == "requirement"]
            if name.startswith("test_") and any(requirement in m.args for m in marks):
                found.append(test)
    return found


def run_special(session: Session, requirement: str) -> None:
    """Run each with every value of its parameters."""
    for test in special_tests(requirement):
        values = [m.args for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
        for value in values[0][1] if values else [None]:
            named = {values[0][0]: value} if values else {}
            with contextlib.suppress(Unmet, pytest.skip.Exception):  # the verdict is in the session
                test(session=session, **named)


def judge_fault(name: str, clean: set[str]) -> Kill:
    """Run every directed case, and the special tests of its own requirement.

    `clean`: cases in which the reference has no finding.
    """
    fault = faults()[name]
    profile = spec.load().requirements[fault.requirement].profile
    if profile == "kernel":
        return Kill(name, fault.requirement, fault.text, fault.model, *killers_of(name, fault.requirement))
    killers: dict[str, int] = {}
    with Worker(find(f"faulty:{name}"), CALL_LIMIT) as worker:  # a fault may hang
        session = session_of(worker, profile)
        for case in cases():
            if case.id in clean and case.profile == profile:
                session.check(case)
        run_special(session, fault.requirement)
        for result in session.results:
            if result.verdict is Verdict.FAIL:
                killers[result.requirement] = killers.get(result.requirement, 0) + 1
        operations = _shortest(session, fault.requirement)
    return Kill(name, fault.requirement, fault.text, fault.model, killers, operations)


def _shortest(session: Session, requirement: str) -> int | None:
    candidates = session.failing.get(requirement)
    if not candidates:
        return None

    def shows(candidate: Case) -> bool:
        return any(f.requirement == requirement for f in session.run(candidate)[1])

    return min(len(shrink(case, shows, budget=200).history) for case in candidates)


def clean_cases() -> set[str]:
    """Cases that the reference passes, or cannot run."""
    bad = (Verdict.FAIL, Verdict.ERROR, Verdict.TIMEOUT)
    sessions = {profile: session_of(InProcess(where), profile) for profile, where in SOUND.items()}
    return {
        c.id
        for c in cases()
        if c.profile in sessions and not any(r.verdict in bad for r in sessions[c.profile].check(c))
    }


def markdown(kills: list[Kill]) -> str:
    """The published matrix."""
    dead = sum(k.dead for k in kills)
    lines = [
        "# Kill matrix",
        "",
        f"{len(kills)} planted faults over the reference, {dead} killed by a test of their own requirement, "
        f"{len(kills) - dead} survivors. Written by `nox -s tests`.",
        "",
        "| fault | its requirement | what is wrong | after | killed | operations | further killers |",
        "|---|---|---|---|---|---:|---|",
    ]
    for k in sorted(kills, key=lambda k: (k.requirement, k.name)):
        further = ", ".join(r.removeprefix("KVP-") for r in sorted(k.killers) if r != k.requirement)
        lines.append(
            f"| {k.name} | {k.requirement.removeprefix('KVP-')} | {k.text} | {k.model} | "
            f"{'yes' if k.dead else '**no**'} | {k.operations or '-'} | {further or '-'} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    names = sys.argv[1:] or sorted(faults())
    clean = clean_cases()
    kills = []
    for name in names:
        kill = judge_fault(name, clean)
        kills.append(kill)
        print(
            f"{'killed  ' if kill.dead else 'SURVIVES'} {kill.name:<36} {kill.requirement} "
            f"in {kill.operations} operations, "
            f"also {sorted(set(kill.killers) - {kill.requirement})}"
        )
    if not sys.argv[1:]:
        path = Path("results/kill-matrix.md")
        path.parent.mkdir(exist_ok=True)
        path.write_text(markdown(kills), encoding="utf-8")
        print(path)
    return 0 if all(k.dead for k in kills) else 1


if __name__ == "__main__":
    sys.exit(main())

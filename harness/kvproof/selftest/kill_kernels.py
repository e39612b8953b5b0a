"""The kernel part of the kill matrix: planted faults in the gather kernel, over the directed calls."""

from __future__ import annotations

from typing import Any

from kvproof import spec
from kvproof.conformance.look import Driven, first_look
from kvproof.conformance.session import Session, Settings
from kvproof.histories.directed.kernels import templates
from kvproof.histories.kernels import Serves, Unserved
from kvproof.records import Case, Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.subjects import find
from kvproof.subjects.host import Worker

SOUND = "torch_gather:make"
CRASHING = frozenset({"one_entry_ahead", "writes_before_the_cache"})
"""Faults that end their process."""
CALL_LIMIT = 30.0


def killers_of(name: str, requirement: str) -> tuple[dict[str, int], int | None]:
    """Requirements that named the fault in the first case to kill it, and the calls of that case.

    A case counts in which the sound kernel has no finding. The cases are those that aim at the
    fault's own requirement.
    """
    where = f"faulty:{name}"
    if name in CRASHING:
        with Worker(find(where), CALL_LIMIT) as worker:
            return _judged(worker, requirement)
    return _judged(InProcess(where), requirement)


def _judged(subject: Driven, requirement: str) -> tuple[dict[str, int], int | None]:
    session = _session(subject)
    killers: dict[str, int] = {}
    for case in cases(session, requirement):
        found = {r.requirement for r in session.check(case) if r.verdict is Verdict.FAIL}
        if requirement in found and _sound(case):
            return {**killers, **dict.fromkeys(found, 1)}, len(case.history)
        killers |= dict.fromkeys(found - {requirement}, 1)
    return killers, None


def cases(session: Session, requirement: str) -> list[Case]:
    """The directed calls that aim at the requirement, fitted to the subject."""
    serves = Serves(session.description["limits"], session.gates)
    found = []
    for template in templates():
        if requirement in template.aim:
            try:
                found.append(template.case(serves))
            except Unserved:
                continue
    return found


def _session(subject: Driven) -> Session:
    return Session(subject, spec.load(), Settings(profile="kernel"), first_look(subject, "kernel"))


def _sound(case: Case) -> bool:
    results = _session(InProcess(SOUND)).check(case)
    return all(r.verdict in (Verdict.PASS, Verdict.UNSUPPORTED) for r in results)


def kernel_faults() -> dict[str, Any]:
    """The planted faults of the kernel profile."""
    from kvproof_impls.faulty.adapter import FAULTS

    known = spec.load().requirements
    return {n: f for n, f in FAULTS.items() if known[f.requirement].profile == "kernel"}


if __name__ == "__main__":
    for fault in kernel_faults().values():
        killers, calls = killers_of(fault.name, fault.requirement)
        fate = "SURVIVES" if calls is None else "killed"
        print(f"{fate:<9}{fault.name:<28} {fault.requirement} {sorted(killers)}")

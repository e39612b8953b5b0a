"""Schedulers: directed loads, random arrivals, a long queue, and relations between runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.conformance.citing import directed, profile, requirement
from kvproof.conformance.drawn import drawn
from kvproof.conformance.growing import growing
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.histories.arrivals import arrivals
from kvproof.histories.relations import RELATIONS, compared, outputs
from kvproof.records import Case, Verdict

CHUNKS = 20
QUEUES = (2**6, 2**8, 2**10, 2**12)


@directed("SCHED", "PREEMPT")
def test_directed(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@profile("scheduler")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_arrivals(chunk: int, session: Session) -> None:
    settings = session.settings
    results = []
    for number in range(chunk, settings.histories, CHUNKS):
        if session.spent:
            break
        results += session.check(arrivals(settings.seed + number, session.gates))
    require(results)


@profile("scheduler")
@requirement("KVP-META-001")
@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_same_outputs(relation: str, session: Session) -> None:
    """The same requests in two ways: each must end with the same tokens in both."""
    name, (what, one, other, needs) = f"meta/{relation}", RELATIONS[relation]
    if lacking := sorted({"output", *needs} - session.gates):
        reason = "needs " + ", ".join(lacking)
        require([session.record(name, "KVP-META-001", Verdict.UNSUPPORTED, reason=reason)])
        return
    sides = [[session.run(case)[0] for case in cases] for cases in (one, other)]
    unserved = [run.detail for side in sides for run in side if run.end == "unserved"]
    if unserved:
        require([session.record(name, "KVP-META-001", Verdict.UNSUPPORTED, reason=unserved[0])])
        return
    first, second = ({r: t for run in side for r, t in outputs(run.observations).items()} for side in sides)
    wrong = {r: (first.get(r), second.get(r)) for r in compared(one) if first.get(r) != second.get(r)}
    missing = compared(one) - set(first)
    if not (wrong or missing):
        require([session.record(name, "KVP-META-001", Verdict.PASS)])
        return
    rid = min(set(wrong) | missing)  # of the second way the run that has the first request that differs
    shown, run = next((c, r) for c, r in zip(other, sides[1], strict=True) if rid in compared((c,)))
    ends = [step for step, seen in enumerate(run.observations) if rid in outputs((seen,))]
    require(
        [
            session.record(
                name,
                "KVP-META-001",
                Verdict.FAIL,
                reason="; ".join(r.detail for side in sides for r in side if r.end != "complete"),
                expected=f"{what}: the same outputs",
                got=_differ(wrong) if wrong else f"no output of requests {sorted(missing)}",
                history=shown.history,
                **shown.room,
                step=ends[0] if ends else max(run.step, len(run.observations) - 1, 0),
                observed=drawn(shown, run.observations),
            )
        ]
    )


def _differ(wrong: dict[int, tuple[list[int] | None, list[int] | None]]) -> str:
    """The outputs of each request in the two ways."""
    none = "no output"
    return "; ".join(f"request {rid}: {a or none} and {b or none}" for rid, (a, b) in wrong.items())


@profile("scheduler")
@requirement("KVP-SCHED-009")
def test_cost_of_a_step_with_a_long_queue(session: Session) -> None:
    growing(session, "queue", "KVP-SCHED-009", QUEUES, 0.5, "the waiting requests")

"""Schedulers: directed loads, random arrivals, a long queue, and relations between runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.conformance.citing import directed, profile, requirement
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
    require(
        [
            session.record(
                name,
                "KVP-META-001",
                Verdict.FAIL if wrong or missing else Verdict.PASS,
                expected=f"{what}: the same outputs",
                got=f"{wrong or missing or 'the same'}",
                history=other[-1].history,
                num_blocks=other[-1].num_blocks,
                block_size=other[-1].block_size,
            )
        ]
    )


@profile("scheduler")
@requirement("KVP-SCHED-009")
def test_cost_of_a_step_with_a_long_queue(session: Session) -> None:
    growing(session, "queue", "KVP-SCHED-009", QUEUES, 0.5, "the waiting requests")

"""`--deep`: long histories on larger pools, and histories that Hypothesis writes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.conformance.citing import profile
from kvproof.conformance.plugin import require
from kvproof.conformance.session import MOST_HANGS, RANDOM, Session
from kvproof.histories.arrivals import arrivals
from kvproof.histories.seeded import seeded
from kvproof.records import Case, Result, Verdict

CHUNKS = 20
OPERATIONS = 120
POOL = (8, 40)
LONG = 10
"""One long history for so many short ones."""
SEARCHED = 2
"""One history of Hypothesis for so many short ones."""


@pytest.mark.deep
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_long(chunk: int, session: Session) -> None:
    _long(chunk, session, lambda seed: seeded(seed, session.gates, OPERATIONS, POOL))


@pytest.mark.deep
@profile("scheduler")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_long_arrivals(chunk: int, session: Session) -> None:
    _long(chunk, session, lambda seed: arrivals(seed, session.gates, (OPERATIONS, OPERATIONS), POOL))


@pytest.mark.deep
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_search(chunk: int, session: Session) -> None:
    from kvproof.histories.machine import explore, manager_cases

    results: list[Result] = []
    explore(manager_cases(session.gates), _judge_new(session, results), *_share(chunk, session))
    require(results)


@pytest.mark.deep
@profile("scheduler")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_search_loads(chunk: int, session: Session) -> None:
    from kvproof.histories.machine import explore, scheduler_cases

    results: list[Result] = []
    explore(scheduler_cases(session.gates), _judge_new(session, results), *_share(chunk, session))
    require(results)


def _long(chunk: int, session: Session, write: Callable[[int], Case]) -> None:
    settings = session.settings
    results = []
    for number in range(chunk, settings.histories // LONG, CHUNKS):
        if session.spent:
            break
        case = write(settings.seed + number)
        results += session.check(case.model_copy(update={"id": f"long/{case.seed}"}))
    require(results)


def _share(chunk: int, session: Session) -> tuple[int, int]:
    """Seed and number of histories of a chunk."""
    settings = session.settings
    return settings.seed * CHUNKS + chunk, max(settings.histories // SEARCHED // CHUNKS, 1)


def _judge_new(session: Session, results: list[Result]) -> Callable[[Case], None]:
    """Judges a case, and writes it down if it shows what no case before it has shown."""
    bad = (Verdict.FAIL, Verdict.XFAIL, Verdict.ERROR, Verdict.TIMEOUT)
    shown = {r.requirement for r in session.results if r.verdict in bad}

    def judge(case: Case) -> None:
        if session.spent or session.hangs >= MOST_HANGS:
            return
        outcome, findings = session.run(case)
        broken = {f.requirement for f in findings}
        if outcome.end not in ("complete", "unserved"):
            broken.add(RANDOM[case.profile])
        if broken <= shown:
            session.cases += 1
            session.hangs += outcome.end == "timeout"
            return
        shown.update(broken)
        results.extend(session.check(case))

    return judge

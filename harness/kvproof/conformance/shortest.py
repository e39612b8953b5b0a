"""For each requirement that did not hold the shortest history that shows it, saved to be replayed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kvproof.conformance.drawn import drawn
from kvproof.conformance.session import Session
from kvproof.histories.shrink import shrink, shrink_kernel
from kvproof.records import SHORTEST, Case, Finding, Observation, Result, Verdict
from kvproof.subjects.find import CHECKOUT_VARIABLE


def shortest(session: Session) -> Iterator[Result]:
    """For each failing requirement the shortest history found, saved as a vector; the known ones last."""
    for requirement, candidates in sorted(session.failing.items()):
        case, small = min(
            ((c, _shrunk(session, c, requirement)) for c in candidates),
            key=lambda pair: len(pair[1].history),
        )
        seen, finding = _seen(session, small, requirement)
        if finding is None:  # it does not fail every time
            small, (seen, finding) = case, _seen(session, case, requirement)
        if finding is None:
            continue
        small = small.model_copy(update={"history": small.history[: finding.step + 1], "aim": (requirement,)})
        yield session.record(
            case.id + SHORTEST,
            requirement,
            Verdict.FAIL,
            reason=finding.message,
            expected=finding.expected,
            got=finding.got,
            history=small.history,
            **small.room,
            step=finding.step,
            observed=drawn(small, seen),
            slot=finding.slot,
            **_saved(session, small, requirement),
        )
    for requirement, (case, result) in sorted(session.lost.items()):
        told = result.verdict is Verdict.XFAIL and requirement in session.excused
        if not told and requirement not in session.failing:
            # Not shrunk: a hang costs the limit of a call each time.
            yield _kept(session, result.model_copy(update=_saved(session, case, requirement)))
    yield from _excused(session)


def _excused(session: Session) -> Iterator[Result]:
    """Known failures once more, not shrunk, with what a report draws and the line that replays them."""
    for requirement, (case, result) in sorted(session.excused.items()):
        seen, finding = _seen(session, case, requirement)
        if finding is None or finding.step != result.step:  # it does not fail alike every time
            continue
        aimed = case.model_copy(update={"aim": (requirement,)})
        found = {"observed": drawn(case, seen), "slot": finding.slot}
        yield _kept(session, result.model_copy(update=found | _saved(session, aimed, requirement)))


def _kept(session: Session, result: Result) -> Result:
    session.results.append(result)
    session.emit(result)
    return result


def _saved(session: Session, case: Case, requirement: str) -> dict[str, str]:
    """The case goes into a file; the line that replays it, and the path."""
    implementation = session.worker.implementation
    checkout = f" --checkout {os.environ[CHECKOUT_VARIABLE]}" if implementation.checkout else ""
    path = session.settings.folder / "failures" / f"{session.stem}-{requirement}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    named = case.model_copy(update={"implementation": implementation.spec})
    path.write_text(named.model_dump_json(indent=1, exclude_defaults=True) + "\n", encoding="utf-8")
    return {"replay": f"kvproof replay {path}{checkout}", "vector": str(path)}


def _shrunk(session: Session, case: Case, requirement: str) -> Case:
    def shows(c: Case) -> bool:
        return _seen(session, c, requirement)[1] is not None

    return (
        shrink(case, shows, budget=20 if "processes" in session.gates else 250)
        if case.kernel is None
        else shrink_kernel(case, shows, budget=40)
    )


def _seen(session: Session, case: Case, requirement: str) -> tuple[tuple[Observation, ...], Finding | None]:
    """What is observed in a run of the case, and the first finding of the requirement."""
    outcome, findings = session.run(case)
    return outcome.observations, next((f for f in findings if f.requirement == requirement), None)

"""The verdict on a cost that must not grow: its slope over several sizes."""

from __future__ import annotations

from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.records import Verdict
from kvproof.stats import median, slope
from kvproof.subjects import SubjectError

TRIES = 3
"""What costs too much has to do so each time: a busy machine can make it seem so once."""


def lacks(session: Session, case: str, requirement: str, needs: tuple[str, ...]) -> bool:
    """Whether a capability is missing; if so, that is the verdict."""
    if lacking := sorted(set(needs) - session.gates):
        reason = "needs " + ", ".join(lacking)
        require([session.record(case, requirement, Verdict.UNSUPPORTED, reason=reason)])
    return bool(lacking)


def growing(
    session: Session,
    name: str,
    requirement: str,
    sizes: tuple[int, ...],
    bound: float,
    over: str,
    needs: tuple[str, ...] = (),
) -> None:
    """Judge whether the slope of the cost of `name` over these sizes is below the bound.

    Sizes that cannot be set up are left out; with fewer than two that can, it is UNSUPPORTED.
    """
    case, left_out = f"growth/{name}", ""
    if lacks(session, case, requirement, needs):
        return
    for _ in range(TRIES):
        try:
            growth = session.worker.growth(name, sizes)
        except SubjectError as error:
            require([session.record(case, requirement, Verdict.ERROR, reason=str(error))])
            return
        left_out = left_out or growth.left_out
        if len(growth.times) < 2:
            reason = f"fewer than two sizes can be set up: {left_out}"
            require([session.record(case, requirement, Verdict.UNSUPPORTED, reason=reason)])
            return
        sizes = tuple(growth.times)
        medians = [median(growth.times[size]) for size in sizes]
        found = slope(sizes, medians)
        if found < bound:
            break
    times = ", ".join(f"{s}: {m * 1e6:.0f} us" for s, m in zip(sizes, medians, strict=True))
    require(
        [
            session.record(
                case,
                requirement,
                Verdict.PASS if found < bound else Verdict.FAIL,
                expected=f"slope of the cost over {over} below {bound}",
                got=f"slope {found:.2f} ({times})" + (f"; left out: {left_out}" if left_out else ""),
            )
        ]
    )

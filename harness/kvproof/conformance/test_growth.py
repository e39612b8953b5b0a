"""Cost that must not grow: slopes over the pool, the prompt, the width of the table."""

from __future__ import annotations

import pytest

from kvproof.conformance.citing import requirement
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.records import Verdict
from kvproof.stats import median, slope
from kvproof.subjects import SubjectError

POOLS = (2**10, 2**12, 2**14, 2**16)
PROMPTS = (2**6, 2**8, 2**10)
WIDTHS = (2**8, 2**10, 2**12, 2**14)


def _grows(
    session: Session,
    name: str,
    requirement_id: str,
    needs: tuple[str, ...],
    sizes: tuple[int, ...],
    bound: float,
    what: str,
) -> None:
    lacking = sorted(set(needs) - session.gates)
    case = f"growth/{name}"
    if lacking:
        require(
            [session.record(case, requirement_id, Verdict.UNSUPPORTED, reason="needs " + ", ".join(lacking))]
        )
        return
    try:
        rounds = session.worker.growth(name, sizes)
    except SubjectError as error:
        require([session.record(case, requirement_id, Verdict.ERROR, reason=str(error))])
        return
    medians = [median(r) for r in rounds]
    found = slope(sizes, medians)
    times = ", ".join(f"{s}: {m * 1e6:.0f} us" for s, m in zip(sizes, medians, strict=True))
    verdict = Verdict.PASS if found < bound else Verdict.FAIL
    require(
        [
            session.record(
                case,
                requirement_id,
                verdict,
                expected=f"slope of the cost over {what} below {bound}",
                got=f"slope {found:.2f} ({times})",
            )
        ]
    )


@requirement("KVP-POOL-007")
def test_allocate_and_free(session: Session) -> None:
    _grows(session, "allocate", "KVP-POOL-007", (), POOLS, 0.5, "the pool")


@requirement("KVP-POOL-007")
def test_append(session: Session) -> None:
    _grows(session, "append", "KVP-POOL-007", (), POOLS, 0.5, "the pool")


@requirement("KVP-PREFIX-015")
def test_look_up(session: Session) -> None:
    _grows(session, "look_up", "KVP-PREFIX-015", ("prefix",), PROMPTS, 1.5, "the prompt (1 is linear)")


@requirement("KVP-BATCH-006")
def test_step_batch(session: Session) -> None:
    _grows(session, "step_batch", "KVP-BATCH-006", ("batch",), WIDTHS, 0.5, "the width of the table")


@requirement("KVP-SIZE-002")
@pytest.mark.parametrize("width", [4096])
def test_table_memory(width: int, session: Session) -> None:
    """What is reported against what Python's allocator has handed out for the tables."""
    lacking = sorted({"memory", "batch"} - session.gates)
    if lacking:
        require(
            [
                session.record(
                    "growth/table-memory",
                    "KVP-SIZE-002",
                    Verdict.UNSUPPORTED,
                    reason="needs " + ", ".join(lacking),
                )
            ]
        )
        return
    try:
        (reported, traced), _ = session.worker.growth("table_memory", (width,))
    except SubjectError as error:
        require([session.record("growth/table-memory", "KVP-SIZE-002", Verdict.ERROR, reason=str(error))])
        return
    verdict = Verdict.PASS if 0.8 * traced <= reported <= 1.25 * traced else Verdict.FAIL
    require(
        [
            session.record(
                "growth/table-memory",
                "KVP-SIZE-002",
                verdict,
                expected=f"about {traced:.0f} bytes, as allocated for {width} blocks beside 63 short tables",
                got=f"{reported:.0f} bytes reported",
            )
        ]
    )

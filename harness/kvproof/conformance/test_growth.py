"""Cost that must not grow: slopes over the pool, the prompt, the width of the table."""

from __future__ import annotations

import pytest

from kvproof.conformance.citing import requirement
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.records import Verdict
from kvproof.stats import median, slope
from kvproof.subjects import SubjectError
from kvproof.subjects.growth import PROMPT

POOLS = (2**10, 2**12, 2**14, 2**16)
EMPTY_POOLS = (2**12, 2**14, 2**16, 2**18, 2**20)
PROMPTS = (2**6, 2**8, 2**10)
NO_MORE = 1.5
"""Times the cost of a hit that a miss may cost: equal, and some noise."""
TRIES = 3
"""What costs too much has to do so each time: a busy machine can make it seem so once."""
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
    for _ in range(TRIES):
        try:
            rounds = session.worker.growth(name, sizes)
        except SubjectError as error:
            require([session.record(case, requirement_id, Verdict.ERROR, reason=str(error))])
            return
        medians = [median(r) for r in rounds]
        found = slope(sizes[: len(medians)], medians)
        if found < bound:
            break
    times = ", ".join(f"{s}: {m * 1e6:.0f} us" for s, m in zip(sizes, medians, strict=False))
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


@requirement("KVP-POOL-007")
def test_empty_pools(session: Session) -> None:
    _grows(session, "wide", "KVP-POOL-007", (), EMPTY_POOLS, 0.5, "the pool")


@requirement("KVP-POOL-007")
def test_hits(session: Session) -> None:
    _grows(session, "hit", "KVP-POOL-007", ("prefix",), EMPTY_POOLS, 0.5, "the pool")


@requirement("KVP-PREFIX-015")
def test_look_up(session: Session) -> None:
    _grows(session, "look_up", "KVP-PREFIX-015", ("prefix",), PROMPTS, 1.5, "the prompt (1 is linear)")


@requirement("KVP-PREFIX-015")
def test_first_miss(session: Session) -> None:
    """A look-up that misses at block 0 beside one of the same length that hits throughout."""
    case, needs = "growth/first_miss", {"prefix", "match"}
    if lacking := sorted(needs - session.gates):
        reason = "needs " + ", ".join(lacking)
        require([session.record(case, "KVP-PREFIX-015", Verdict.UNSUPPORTED, reason=reason)])
        return
    for _ in range(TRIES):
        try:
            miss, hit = (median(r) for r in session.worker.growth("first_miss", (0, PROMPT)))
        except SubjectError as error:
            require([session.record(case, "KVP-PREFIX-015", Verdict.ERROR, reason=str(error))])
            return
        if miss < NO_MORE * hit:
            break
    require(
        [
            session.record(
                case,
                "KVP-PREFIX-015",
                Verdict.PASS if miss < NO_MORE * hit else Verdict.FAIL,
                expected=f"a miss at block 0 costs at most {NO_MORE} times a hit of all {PROMPT} blocks",
                got=f"miss {miss * 1e6:.0f} us, hit {hit * 1e6:.0f} us",
            )
        ]
    )


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

"""Cost that must not grow: slopes over the pool, the prompt, the width of the table."""

from __future__ import annotations

import pytest

from kvproof.conformance.citing import requirement
from kvproof.conformance.growing import TRIES, growing, lacks
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.records import Verdict
from kvproof.stats import median
from kvproof.subjects import SubjectError
from kvproof.subjects.growth import PROMPT

POOLS = (2**10, 2**12, 2**14, 2**16)
EMPTY_POOLS = (2**12, 2**14, 2**16, 2**18, 2**20)
FREE_POOLS = (2**16, 2**18, 2**20)
"""A copy of the list of free blocks takes longer there than what else a free does."""
PROMPTS = (2**6, 2**8, 2**10)
NO_MORE = 1.5
"""Times the cost of a hit that a miss may cost: equal, and some noise."""
WIDTHS = (2**8, 2**10, 2**12, 2**14)


@requirement("KVP-POOL-007")
def test_allocate_and_free(session: Session) -> None:
    growing(session, "allocate", "KVP-POOL-007", POOLS, 0.5, "the pool")


@requirement("KVP-POOL-007")
def test_append(session: Session) -> None:
    growing(session, "append", "KVP-POOL-007", POOLS, 0.5, "the pool")


@requirement("KVP-POOL-007")
def test_empty_pools(session: Session) -> None:
    growing(session, "wide", "KVP-POOL-007", EMPTY_POOLS, 0.5, "the pool")


@requirement("KVP-POOL-007")
def test_free_alone(session: Session) -> None:
    """A free by itself: beside what an add costs, a copy of the list of free blocks is lost."""
    growing(session, "free", "KVP-POOL-007", FREE_POOLS, 0.5, "the pool")


@requirement("KVP-POOL-007")
def test_release_alone(session: Session) -> None:
    growing(session, "release", "KVP-POOL-007", FREE_POOLS, 0.5, "the pool", ("blocks",))


@requirement("KVP-POOL-007")
def test_hits(session: Session) -> None:
    growing(session, "hit", "KVP-POOL-007", EMPTY_POOLS, 0.5, "the pool", ("prefix",))


@requirement("KVP-PREFIX-015")
def test_look_up(session: Session) -> None:
    growing(session, "look_up", "KVP-PREFIX-015", PROMPTS, 1.5, "the prompt (1 is linear)", ("prefix",))


@requirement("KVP-PREFIX-015")
def test_first_miss(session: Session) -> None:
    """A look-up that misses at block 0 beside one of the same length that hits throughout."""
    case, key = "growth/first_miss", "KVP-PREFIX-015"
    if lacks(session, case, key, ("prefix", "match")):
        return
    for _ in range(TRIES):
        try:
            growth = session.worker.growth("first_miss", (0, PROMPT))
        except SubjectError as error:
            require([session.record(case, key, Verdict.ERROR, reason=str(error))])
            return
        if len(growth.times) < 2:
            reason = f"the prompt cannot be set up: {growth.left_out}"
            require([session.record(case, key, Verdict.UNSUPPORTED, reason=reason)])
            return
        miss, hit = (median(growth.times[at]) for at in (0, PROMPT))
        if miss < NO_MORE * hit:
            break
    require(
        [
            session.record(
                case,
                key,
                Verdict.PASS if miss < NO_MORE * hit else Verdict.FAIL,
                expected=f"a miss at block 0 costs at most {NO_MORE} times a hit of all {PROMPT} blocks",
                got=f"miss {miss * 1e6:.0f} us, hit {hit * 1e6:.0f} us",
            )
        ]
    )


@requirement("KVP-BATCH-006")
def test_step_batch(session: Session) -> None:
    growing(session, "step_batch", "KVP-BATCH-006", WIDTHS, 0.5, "the width of the table", ("batch",))


@requirement("KVP-SIZE-002")
@pytest.mark.parametrize("width", [4096])
def test_table_memory(width: int, session: Session) -> None:
    """What is reported against what Python's allocator has handed out for the tables."""
    case, key = "growth/table-memory", "KVP-SIZE-002"
    if lacks(session, case, key, ("memory", "batch")):
        return
    try:
        reported, traced = session.worker.growth("table_memory", (width,)).times[width]
    except SubjectError as error:
        require([session.record(case, key, Verdict.ERROR, reason=str(error))])
        return
    require(
        [
            session.record(
                case,
                key,
                Verdict.PASS if 0.8 * traced <= reported <= 1.25 * traced else Verdict.FAIL,
                expected=f"about {traced:.0f} bytes, as allocated for {width} blocks beside 63 short tables",
                got=f"{reported:.0f} bytes reported",
            )
        ]
    )

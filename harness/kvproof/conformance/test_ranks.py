"""Groups of ranks: directed steps and faults, and seeded random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kvproof.conformance.citing import directed, profile
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.histories.rank_faults import rank_faults
from kvproof.records import Case

CHUNKS = 10
RARER = 3
"""Each of these has a state a rank to look at: as many fewer are drawn."""
RARER_IN_PROCESSES, STEPS_IN_PROCESSES = 30, (3, 7)
"""There each takes seconds: lost messages are waited for."""


@directed("TP")
def test_directed(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@profile("ranks")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_faults(chunk: int, session: Session) -> None:
    settings = session.settings
    results = []
    rarer, draw = RARER, rank_faults
    if "processes" in session.gates:
        rarer, draw = RARER_IN_PROCESSES, partial(rank_faults, steps=STEPS_IN_PROCESSES)
    for number in range(chunk, settings.histories // rarer, CHUNKS):
        if session.spent:
            break
        results += session.check(draw(settings.seed + number, session.gates))
    require(results)

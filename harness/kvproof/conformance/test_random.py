"""Seeded random histories: every check after every operation, whatever it finds."""

from __future__ import annotations

import pytest

from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.histories.seeded import seeded

CHUNKS = 20


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_seeded(chunk: int, session: Session) -> None:
    settings = session.settings
    results = []
    for number in range(chunk, settings.histories, CHUNKS):
        if session.spent:
            break
        case = seeded(settings.seed + number, session.gates)
        results += session.check(case)
    require(results)

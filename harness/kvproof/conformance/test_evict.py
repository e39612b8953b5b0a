"""Directed cases of EVICT."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.conformance.citing import directed
from kvproof.records import Case


@directed("EVICT")
def test_directed(case: Case, check: Callable[[Case], None]) -> None:
    check(case)

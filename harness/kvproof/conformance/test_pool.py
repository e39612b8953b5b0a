"""Directed cases of POOL FREE."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.conformance.citing import directed
from kvproof.records import Case


@directed("POOL", "FREE")
def test_directed(case: Case, check: Callable[[Case], None]) -> None:
    check(case)

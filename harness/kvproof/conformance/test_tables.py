"""Directed cases of TABLE STEP SELF DATA PROBE."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.conformance.citing import directed
from kvproof.records import Case


@directed("TABLE", "STEP", "SELF", "DATA", "PROBE")
def test_directed(case: Case, check: Callable[[Case], None]) -> None:
    check(case)

"""Directed cases of BATCH SLOT SIZE WIRE."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.conformance.citing import directed
from kvproof.records import Case


@directed("BATCH", "SLOT", "SIZE", "WIRE")
def test_directed(case: Case, check: Callable[[Case], None]) -> None:
    check(case)

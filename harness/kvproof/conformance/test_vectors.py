"""Vectors: short histories, each of which has shown a fault, replayed on everyone."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.conformance.citing import saved
from kvproof.records import Case


@saved()
def test_vector(case: Case, check: Callable[[Case], None]) -> None:
    check(case)

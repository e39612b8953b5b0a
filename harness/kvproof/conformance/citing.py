"""How a conformance test cites the requirements it judges."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.histories.directed import cases
from kvproof.records import Case


def requirement(*ids: str) -> pytest.MarkDecorator:
    """The test judges these: `@requirement("KVP-POOL-007")`."""
    return pytest.mark.requirement(*ids)


def directed(*areas: str) -> pytest.MarkDecorator:
    """Parametrizes `case` over the directed cases whose first aim is in one of the areas."""
    chosen: list[Case] = [c for c in cases() if c.aim[0].split("-")[1] in areas]
    params: list[Any] = [pytest.param(c, id=c.id, marks=requirement(*c.aim)) for c in chosen]
    return pytest.mark.parametrize("case", params)


def citations() -> dict[str, set[str]]:
    """Requirement -> the tests that cite it: directed cases, and marks of the other tests."""
    found: dict[str, set[str]] = {}
    for case in cases():
        for aim in case.aim:
            found.setdefault(aim, set()).add(case.id)
    from kvproof.conformance import test_apart, test_growth

    for module in (test_growth, test_apart):
        for name, value in vars(module).items():
            for mark in getattr(value, "pytestmark", []):
                if name.startswith("test_") and mark.name == "requirement":
                    for key in mark.args:
                        found.setdefault(str(key), set()).add(f"{module.__name__.rsplit('.', 1)[-1]}::{name}")
    return found

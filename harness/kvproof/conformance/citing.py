"""How a conformance test cites the requirements it judges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from kvproof import spec
from kvproof.conformance.replay import load_vector
from kvproof.histories.directed import cases
from kvproof.histories.directed.kernels import templates
from kvproof.histories.relations import RELATIONS
from kvproof.records import Case

DRAWN = re.compile(r"(random|long)/-?\d+|search/[0-9a-f]{8}")
"""Names of the cases that are drawn, not listed."""
UNLISTED = frozenset(
    {
        *(
            f"growth/{name}"
            for name in (
                *("allocate", "append", "wide", "free", "release", "hit"),
                *("look_up", "first_miss", "step_batch", "table-memory", "queue"),
            )
        ),
        *(f"meta/{name}" for name in RELATIONS),
        *("prefix/keys-in-another-process", "prefix/declared-guard", "err/make-8-0", "err/make-8--1"),
    }
)
"""Names of the cases that are no single history."""


def requirement(*ids: str) -> pytest.MarkDecorator:
    """The test judges these: `@requirement("KVP-POOL-007")`."""
    return pytest.mark.requirement(*ids)


def profile(name: str) -> pytest.MarkDecorator:
    """The kind of subject that the test judges; "manager" where it does not say."""
    return pytest.mark.profile(name)


def directed(*areas: str) -> pytest.MarkDecorator:
    """Parametrizes `case` over the directed cases whose first aim is in one of the areas."""
    return _each([c for c in cases() if c.aim[0].split("-")[1] in areas])


def saved() -> pytest.MarkDecorator:
    """Parametrizes `case` over the vectors of the specification."""
    return _each(vectors())


def _each(chosen: Iterable[Case]) -> pytest.MarkDecorator:
    params: list[Any] = [
        pytest.param(c, id=c.id, marks=(requirement(*c.aim), profile(c.profile))) for c in chosen
    ]
    return pytest.mark.parametrize("case", params)


@cache
def vectors() -> tuple[Case, ...]:
    """The histories under specs/vectors."""
    return tuple(load_vector(path) for path in sorted((spec.find() / "vectors").glob("*/*.json")))


def case_names() -> frozenset[str]:
    """Every case that has a name of its own; see DRAWN for the others."""
    return UNLISTED.union((c.id for c in cases()), (c.id for c in vectors()), (t.id for t in templates()))


def citations() -> dict[str, set[str]]:
    """Requirement -> the tests that cite it: directed cases, and marks of the other tests."""
    found: dict[str, set[str]] = {}
    listed = [(c.id, c.aim) for c in cases()] + [(t.id, t.aim) for t in templates()]
    for name, aims in listed:
        for aim in aims:
            found.setdefault(aim, set()).add(name)
    from kvproof.conformance import test_apart, test_growth, test_scheduler

    for module in (test_growth, test_apart, test_scheduler):
        for name, value in vars(module).items():
            for mark in getattr(value, "pytestmark", []):
                if name.startswith("test_") and mark.name == "requirement":
                    for key in mark.args:
                        found.setdefault(str(key), set()).add(f"{module.__name__.rsplit('.', 1)[-1]}::{name}")
    return found

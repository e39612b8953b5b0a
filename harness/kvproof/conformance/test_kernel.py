"""Kernels: directed calls fitted to what the subject serves, and seeded random ones."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.conformance.citing import profile, requirement
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.histories.directed.kernels import templates
from kvproof.histories.kernels import Serves, Template, Unserved, drawn
from kvproof.records import Verdict

CHUNKS = 10
RARER = 20
"""A call of a kernel costs so many times a history of a manager: as many fewer are drawn."""


def serves(session: Session) -> Serves:
    """What the subject's limits allow."""
    return Serves(session.description["limits"], session.gates)


def _each() -> pytest.MarkDecorator:
    params: list[Any] = [
        pytest.param(t, id=t.id, marks=(requirement(*t.aim), profile("kernel"))) for t in templates()
    ]
    return pytest.mark.parametrize("template", params)


@_each()
def test_directed(template: Template, session: Session) -> None:
    try:
        case = template.case(serves(session))
    except Unserved as reason:
        wanted = session.settings.requirements
        aims = [a for a in template.aim if not wanted or a in wanted]
        require([session.record(template.id, a, Verdict.UNSUPPORTED, reason=str(reason)) for a in aims])
        return
    require(session.check(case))


@profile("kernel")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random(chunk: int, session: Session) -> None:
    settings = session.settings
    results = []
    for number in range(chunk, settings.histories // RARER, CHUNKS):
        if session.spent:
            break
        results += session.check(drawn(settings.seed + number, serves(session), settings.deep))
    require(results)

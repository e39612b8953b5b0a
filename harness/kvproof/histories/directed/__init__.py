"""Directed histories: each aims at one class of fault, with the reason beside it."""

from __future__ import annotations

from kvproof.histories.directed import (
    errors,
    evict,
    pool,
    prefix,
    ranks,
    scheduling,
    sharing,
    swap,
    tables,
)
from kvproof.records import Case


def cases(requirement: str | None = None) -> list[Case]:
    """All directed cases, or those that aim at one requirement."""
    modules = (pool, sharing, tables, prefix, evict, swap, errors, scheduling, ranks)
    found = [c for module in modules for c in module.cases()]
    if requirement is None:
        return found
    return [c for c in found if requirement in c.aim]

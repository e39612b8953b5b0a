"""Directed histories: each aims at one class of fault, with the reason beside it."""

from __future__ import annotations

from functools import cache

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
    weak_keys,
)
from kvproof.records import Case


@cache  # a test module of each area asks for them
def cases() -> tuple[Case, ...]:
    """All directed cases."""
    modules = (pool, sharing, tables, prefix, weak_keys, evict, swap, errors, scheduling, ranks)
    return tuple(c for module in modules for c in module.cases())

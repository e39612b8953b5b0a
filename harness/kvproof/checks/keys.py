"""Judges block keys: equal exactly when everything that decides the KV of the block is equal."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from kvproof.records import Case, Finding, Observation


def identity(tokens: Sequence[Any], keys: Mapping[str, Any], end: int) -> tuple[Hashable, ...]:
    """All that the key of the block that ends at `end` stands for."""
    media = tuple((o, n, i) for o, n, i in keys.get("media", ()) if o < end)
    domain = tuple((name, keys[name]) for name in ("salt", "adapter") if name in keys)
    return (tuple(tokens[:end]), domain, media)


def compare(case: Case, observations: Sequence[Observation]) -> Iterator[Finding]:
    """PREFIX-001, -002, -007, -009 over all `block_keys` answers of one history."""
    size = case.block_size
    by_identity: dict[tuple[Hashable, ...], str] = {}
    by_key: dict[str, tuple[tuple[Hashable, ...], int]] = {}
    for step, (op, seen) in enumerate(zip(case.history, observations, strict=False)):
        if op.op != "block_keys" or seen.outcome != "ok":
            continue
        tokens = list(op.tokens or ())
        wanted = len(tokens) // size
        if len(seen.value) != wanted:
            yield _finding("PREFIX-005", step, f"{wanted} keys, one a full block", f"{len(seen.value)}")
        for index, key in enumerate(seen.value[:wanted]):
            what = identity(tokens, op.keys or {}, (index + 1) * size)
            known = by_identity.setdefault(what, key)
            if known != key:
                yield _finding("PREFIX-009", step, f"key {known} again for the same block", key)
            other, _ = by_key.setdefault(key, (what, step))
            if other != what:
                yield _finding(
                    _cause(other, what, size), step, f"a key of its own for block {index}", f"{key} again"
                )


def _cause(one: tuple[Any, ...], other: tuple[Any, ...], size: int) -> str:
    if one[0] == other[0]:
        return "PREFIX-007"
    return "PREFIX-002" if one[0][-size:] == other[0][-size:] else "PREFIX-001"


def _finding(requirement: str, step: int, expected: str, got: str) -> Finding:
    return Finding(
        requirement=f"KVP-{requirement}", step=step, expected=expected, got=got, message="block_keys"
    )

"""ERR: bad input is a named error and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvproof.histories.build import History
from kvproof.histories.directed.pool import tokens
from kvproof.records import Case


def cases() -> Iterator[Case]:
    wrong: dict[str, tuple[str, dict[str, Any]]] = {
        "negative-id": ("a negative id", {"op": "add", "seq": -1, "tokens": (1, 2)}),
        "duplicate-id": ("a duplicate id", {"op": "add", "seq": 0, "tokens": (7, 8, 9)}),
        "no-tokens": ("an add of no tokens", {"op": "add", "seq": 5, "tokens": ()}),
    }
    for name, (what, fields) in wrong.items():
        yield (
            History().add(0, tokens(3)).op(**fields, args={"bad": what}).append(0, 8).free(0).reclaim()
            .case(f"err/{name}", "ERR-001", 8, 2, stands_for=("POOL-001", "POOL-008", "TABLE-003"),
                note=f"{what} is half applied")
        )
    unknown: dict[str, dict[str, Any]] = {
        "append": {"op": "append", "seq": 9, "tokens": (1,)},
        "table": {"op": "table", "seq": 9},
        "fork": {"op": "fork", "seq": 9, "child": 10},
        "truncate": {"op": "truncate", "seq": 9, "length": 1},
        "swap_out": {"op": "swap_out", "seq": 9},
        "swap_in": {"op": "swap_in", "seq": 9},
    }
    for name, fields in unknown.items():
        yield (
            History().add(0, tokens(3)).op(**fields, args={"unknown": True}).append(0, 8).free(0)
            .reclaim()
            .case(f"err/unknown-{name}", "ERR-001", 8, 2, stands_for=("POOL-001", "POOL-008"),
                note="an id that no live sequence has")
        )
    yield (
        History().add(0, tokens(3)).free(0).op("append", seq=0, tokens=(4,), args={"unknown": True})
        .add(0, tokens(2, 50)).append(0, 9).free(0).reclaim()
        .case("err/append-after-free", "ERR-001", 8, 2,
            stands_for=("POOL-001", "POOL-008", "TABLE-001"))
    )
    yield (
        History().add(0, tokens(3)).fork(0, 1)
        .op("fork", seq=0, child=1, args={"bad": "a duplicate id"}).append(0, 8).append(1, 9).free(0, 1)
        .reclaim()
        .case("err/fork-onto-a-live-id", "ERR-001", 8, 2,
            stands_for=("POOL-001", "POOL-008", "SHARE-007"))
    )
    yield (
        History().add(0, tokens(3)).op("fork", seq=0, child=-1, args={"bad": "a negative id"}).append(0, 8)
        .free(0).reclaim()
        .case("err/fork-to-a-negative-id", "ERR-001", 8, 2,
            stands_for=("POOL-001", "POOL-008", "SHARE-007"), note="the child's id is not looked at")
    )
    for name, token in (("float", 1.5), ("string", "a"), ("none", None)):
        what = "a token that is no integer"
        yield (
            History().add(0, tokens(5)).op("add", seq=1, tokens=(1, 2, token), args={"bad": what})
            .op("append", seq=0, tokens=(token,), args={"bad": what}).append(0, 8).free(0).reclaim()
            .add(2, tokens(5)).free(2)
            .case(f"err/token-{name}", "ERR-002", 10, 2, needs=("prefix",),
                stands_for=("POOL-001", "POOL-008"), note="a token that is no integer gets into a key")
        )

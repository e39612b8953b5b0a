"""Histories: the same from the same seed, legal for subjects without `defer`, shrunk to what matters."""

from __future__ import annotations

import pytest

from kvproof.histories.build import History, runnable
from kvproof.histories.directed import cases
from kvproof.histories.seeded import seeded
from kvproof.histories.shrink import shrink
from kvproof.records import Case, Operation

ALL = (
    "prefix",
    "keys",
    "fork",
    "copies",
    "multi",
    "defer",
    "truncate",
    "swap",
    "steps",
    "batch",
    "csr",
    "reset",
)


def test_a_seed_gives_one_history() -> None:
    assert seeded(7, ALL) == seeded(7, ALL)
    assert seeded(7, ALL) != seeded(8, ALL)


@pytest.mark.parametrize("seed", range(20))
def test_without_defer_every_add_and_append_is_committed_at_once(seed: int) -> None:
    history = seeded(seed, set(ALL) - {"defer"}).history
    for op, following in zip(history, [*history[1:], None], strict=True):
        if op.op in ("add", "append"):
            assert following is not None
            assert (following.op, following.seq, following.computed) == ("commit", op.seq, None)


def test_capabilities_bound_the_operations() -> None:
    used = {op.op for seed in range(30) for op in seeded(seed, ()).history}
    assert used == {"add", "append", "commit", "free", "reclaim"}


def test_directed_cases_have_names_of_their_own_and_say_what_they_need() -> None:
    every = cases()
    assert len({c.id for c in every}) == len(every)
    assert all(c.aim and c.note is not None for c in every)
    fork = next(c for c in every if any(op.op == "fork" for op in c.history))
    assert "fork" in runnable(fork, ())
    late = History().add(0, [1, 2], commit=False).commit(0, 1).case("x", "POOL-001", 4, 2)
    assert "defer" in late.needs
    prompt = History().add(0, [1, 2]).append(0, 3).case("x", "POOL-001", 4, 2)
    assert "defer" not in prompt.needs


def test_shrinking_keeps_what_fails_and_drops_the_rest() -> None:
    case = seeded(3, ALL)
    wanted = next(op.seq for op in case.history if op.op == "free")

    def fails(candidate: Case) -> bool:
        ops = candidate.history
        started = [i for i, op in enumerate(ops) if op.op == "add" and op.seq == wanted]
        ended = [i for i, op in enumerate(ops) if op.op == "free" and op.seq == wanted]
        return bool(started and ended and started[0] < ended[0])

    small = shrink(case, fails)
    assert fails(small)
    assert [op.op for op in small.history] == ["add", "commit", "free"]
    assert len(small.history[0].tokens or ()) == 1


def test_an_operation_is_shown_short_and_stored_whole() -> None:
    op = Operation(op="add", seq=1, tokens=tuple(range(40)))
    assert str(op) == "add(seq=1, tokens=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... 40 in all])"
    assert Operation.model_validate_json(op.model_dump_json()) == op

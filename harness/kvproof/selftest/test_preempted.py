"""What is held against a scheduler that preempts: plans by hand, and nothing that it does not name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvproof.checks.scheduling import judge_scheduler
from kvproof.histories.directed.scheduling import cases
from kvproof.oracle.scheduling import SchedulerFacts
from kvproof.records import Case, Observation, Operation, Verdict
from kvproof.selftest.kill_matrix import session_of
from kvproof.selftest.wrong_schedulers import Wrapped
from kvproof.subjects import find
from kvproof.subjects.host import Worker

Row = tuple[int, int, int, tuple[int, ...]]
BOTH: tuple[Row, ...] = ((0, 0, 2, (0,)), (1, 0, 2, (2, 3)))
"""Two requests compute their prompts of two tokens, and sample one each."""


def step(*rows: Row, preempted: Sequence[int] = ()) -> dict[str, Any]:
    nothing: dict[str, Any] = {"copies": [], "rejected": [], "reads": {}, "writes": [], "finished": []}
    return {"rows": rows, "preempted": preempted, "free": 8, "fed": [7] * len(rows)} | nothing


def found(steps: Sequence[dict[str, Any]], **policy: Any) -> list[str]:
    """What of PREEMPT is held against these steps, of two requests of 2 tokens that want 8 more each."""
    history = [Operation(op="submit", seq=rid, tokens=(1, 2), args={"max_new": 8}) for rid in (0, 1)]
    case = Case(
        id="case", aim=(), num_blocks=8, block_size=2, max_seqs=4, max_tokens=8,
        history=(*history, Operation(op="drain")),
    )  # fmt: skip
    seen = [Observation(outcome="ok"), Observation(outcome="ok"), Observation(outcome="ok", value=steps)]
    facts = SchedulerFacts(8, 2, 4, 8, policy=policy)
    findings = judge_scheduler(case, facts, seen)
    return [f.requirement.removeprefix("KVP-") for f in findings if "PREEMPT" in f.requirement]


OTHER_GAINS = (
    step(*BOTH),
    step((0, 2, 3, (0, 1)), preempted=[1]),
    step((0, 3, 4, (0, 1)), (1, 0, 2, (2,))),
    step((0, 4, 5, (0, 1, 3)), preempted=[1]),
)
NOBODY_GAINS = (
    step(*BOTH),
    step(preempted=[1]),
    step((1, 0, 2, (2,))),
    step((0, 2, 3, (0, 1)), preempted=[1]),
)


def test_a_victim_may_fall_again_while_another_request_gains() -> None:
    assert found(OTHER_GAINS) == []
    assert found(NOBODY_GAINS) == ["PREEMPT-002"]


def test_who_declares_a_bound_gains_itself_or_another_ends() -> None:
    assert found(OTHER_GAINS, max_preemptions=2) == ["PREEMPT-003"]
    assert found(NOBODY_GAINS, max_preemptions=2) == ["PREEMPT-002", "PREEMPT-003"]
    ends = [dict(one) for one in OTHER_GAINS]
    ends[2]["aborted"] = 0
    assert found(ends, max_preemptions=2) == []
    assert found(ends, max_preemptions=1) == ["PREEMPT-003"]


class Stops(Wrapped):
    """Plans nothing from its sixth step on."""

    planned = 0

    def plan(self) -> list[Any]:
        self.planned += 1
        rows: list[Any] = self.inner.plan() if self.planned < 6 else []
        return rows


class StopsUnbounded(Stops):
    """Says nothing of how often it preempts."""

    @property
    def policy(self) -> dict[str, Any]:
        return {k: v for k, v in self.inner.policy.items() if k != "max_preemptions"}


@pytest.mark.parametrize(
    ("name", "verdict"), [("Stops", Verdict.FAIL), ("StopsUnbounded", Verdict.UNSUPPORTED)]
)
def test_what_is_not_named_is_not_held_against_anybody(name: str, verdict: Verdict) -> None:
    case = next(c for c in cases() if c.id == "preempt/ping-pong")
    with Worker(find(f"kvproof.selftest.test_preempted:{name}")) as worker:
        results = {r.requirement: r for r in session_of(worker, "scheduler").check(case)}
    assert results["KVP-SCHED-005"].verdict is Verdict.FAIL
    assert "planned nothing" in results["KVP-SCHED-005"].got
    assert results["KVP-PREEMPT-003"].verdict is verdict

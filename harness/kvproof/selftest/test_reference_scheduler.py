"""The inside of the schedulers: what the conformance suite, which sees only plans, cannot reach."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kvproof.contract import BadInput, Refused, UnknownSequence
from kvproof.histories.play import POISON, next_token
from kvproof_impls.plain.adapter import make_scheduler as make_plain
from kvproof_impls.reference import scheduler as module
from kvproof_impls.reference.adapter import (
    make,
    make_reserved,
    make_scheduler,
    make_scheduler_uncached,
    make_uncached,
)
from kvproof_impls.reference.decoding import LOG
from kvproof_impls.reference.host import HostTier
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request, State, Waiting
from kvproof_impls.reference.running import Running
from kvproof_impls.reference.scheduler import Scheduler
from kvproof_impls.reference.tables import Tables


def ranges(scheduler: Any) -> list[tuple[int, int, int]]:
    """Plan a step: (rid, lo, hi) of its rows."""
    return [row[:3] for row in scheduler.plan()]


class Client:
    """Plays the model for the requests that it submits."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.tokens: dict[int, list[int]] = {}
        self.plans: list[list[tuple[int, int, int]]] = []

    def submit(self, rid: int, prompt: list[int], max_new: int, priority: int = 0) -> None:
        self.scheduler.submit(rid, prompt, max_new, priority)
        self.tokens[rid] = list(prompt)

    def step(self) -> list[int]:
        self.plans.append(ranges(self.scheduler))
        fed = []
        for rid, _, high in self.plans[-1]:
            known = self.tokens[rid]
            fed.append(next_token(known) if high == len(known) else POISON)
            known += [fed[-1]] if high == len(known) else []
        finished: list[int] = self.scheduler.feed(fed)
        return finished

    def drain(self) -> None:
        while self.scheduler.has_work():
            self.step()


def load(client: Client, seed: int) -> None:
    """Twelve requests with common beginnings, more than a pool of 40 slots has room for at once."""
    draw = random.Random(seed)
    for rid in range(12):
        prompt = [1] * draw.randint(1, 9) + [2] * draw.randint(0, 5)
        client.submit(rid, prompt, draw.randint(1, 14), draw.randint(0, 2))


# ---------------------------------------------------------------- preemption


@pytest.mark.parametrize("order", ["fcfs", "priority"])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_victims_are_last_in_the_order_and_preempted_once(order: str, swap: bool, seed: int) -> None:
    scheduler = Scheduler(make(10, 4), 8, 24, order=order, swap=swap)
    client = Client(scheduler)
    load(client, seed)
    lost: set[int] = set()
    while scheduler.has_work():
        running = scheduler._running
        before = {r.rid: r.key for r in (*running.batch.requests, *running.chunks.values())}
        client.step()
        for rid in scheduler.preempted():
            assert rid not in lost
            lost.add(rid)
            del before[rid]
            # Nobody behind it in the order stays, but for those that were preempted themselves.
            key = scheduler._requests[rid].key
            assert all(other < key or other_id in lost for other_id, other in before.items())
            assert order == "priority" or all(other < key for other in before.values())
        assert scheduler.manager.selfcheck() == []
    assert scheduler.free_blocks() == 10


@pytest.mark.parametrize("seed", range(20))
def test_plain_preempts_once_too(seed: int) -> None:
    scheduler = make_plain(11, 4, 8, 24)
    client = Client(scheduler)
    load(client, seed)
    lost: list[int] = []
    while scheduler.has_work():
        client.step()
        lost += scheduler.preempted()
    assert len(lost) == len(set(lost))
    assert scheduler.free_blocks() == 10


def test_a_full_host_tier_means_recompute() -> None:
    class Small(Manager):
        host_type = staticmethod(lambda _: HostTier(1))  # type: ignore[assignment]

    scheduler = Scheduler(Small(6, 2), 4, 16, swap=True)
    client = Client(scheduler)
    client.submit(0, [1, 2, 1], 6)
    client.submit(1, [2, 1, 1], 6)
    client.drain()
    assert scheduler.preempted() == [1]
    assert scheduler.copies() == []
    assert scheduler.output(1) == client.tokens[1][3:]


# ---------------------------------------------------------------- fast and slow


@pytest.mark.parametrize("seed", range(20))
def test_the_decode_batch_equals_rows_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, slow = (Client(make_scheduler_uncached(10, 4, 6, 24)) for _ in range(2))
    load(fast, seed)
    load(slow, seed)
    fast.drain()
    monkeypatch.setattr(Running, "to_batch", lambda self, requests: None)
    slow.drain()
    assert [sorted(plan) for plan in fast.plans] == [sorted(plan) for plan in slow.plans]
    assert fast.tokens == slow.tokens
    assert fast.scheduler.preempted() == slow.scheduler.preempted()


def test_a_running_batch_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(make_scheduler(64, 4, 8, 64))
    for rid in range(8):
        client.submit(rid, [rid, rid], 20)
    client.step()
    client.step()

    def refuse(self: Tables, seqs: list[int]) -> None:
        raise AssertionError("the rows of the batch were looked up again")

    monkeypatch.setattr(Tables, "_places", refuse)
    for _ in range(10):
        client.step()


def test_outputs_are_right_at_any_time() -> None:
    client = Client(make_scheduler(200, 4, 4, 64))
    client.submit(0, [1], 2 * LOG + 9)
    for step in range(2 * LOG + 5):
        if step == LOG - 3:
            client.submit(1, [2, 2], 7)
        client.step()
        if step % 13 == 0:
            assert client.scheduler.output(0) == client.tokens[0][1:]
    assert client.scheduler.output(1) == client.tokens[1][2:]
    client.drain()
    assert client.scheduler.output(0) == client.tokens[0][1:]


def test_table_views_follow_growth_and_a_wider_matrix() -> None:
    client = Client(make_scheduler(400, 2, 12, 400))
    for rid in range(3):
        client.submit(rid, [rid + 1], 60)
    for step in range(40):
        if step == 20:
            for rid in range(3, 12):
                client.submit(rid, [1] * 30, 20)
        rows = client.scheduler.plan()
        assert [list(row[3]) for row in rows] == [client.scheduler.manager.table(row[0]) for row in rows]
        client.scheduler.feed([1] * len(rows))


# ---------------------------------------------------------------- several tokens at once


def test_accepted_drafts_are_computed_and_rejected_ones_are_dropped() -> None:
    scheduler = make_scheduler(8, 2, 4, 16)
    scheduler.submit(0, [1, 2, 3], 9)
    assert ranges(scheduler) == [(0, 0, 3)]
    scheduler.feed([4])
    scheduler.propose(0, [5, 6, 7])
    [(rid, low, high, table)] = scheduler.plan()
    assert (rid, low, high, len(table)) == (0, 3, 7, 4)
    scheduler.feed([[5, 9]])  # 5 was right, 9 comes after it
    assert scheduler.output(0) == [4, 5, 9]
    assert scheduler.manager.table(0) == list(table)[:3]
    assert ranges(scheduler) == [(0, 5, 6)]
    scheduler.feed([8])
    assert scheduler.manager.match([1, 2, 3, 4, 5, 9, 0]) == 6
    assert scheduler.manager.match([1, 2, 3, 4, 5, 6, 7]) == 4
    assert scheduler.manager.selfcheck() == []


def test_all_drafts_right_gives_one_token_more() -> None:
    scheduler = make_scheduler(8, 2, 4, 16)
    scheduler.submit(0, [1], 5)
    scheduler.plan()
    scheduler.feed([2])
    scheduler.propose(0, [3, 4])
    assert ranges(scheduler) == [(0, 1, 4)]
    scheduler.feed([[3, 4, 5]])
    assert ranges(scheduler) == [(0, 4, 5)]
    assert scheduler.feed([[6, 7, 8]]) == [0]  # it wanted one only
    assert scheduler.output(0) == [2, 3, 4, 5, 6]
    assert scheduler.free_blocks() == 8


def test_drafts_take_what_others_leave() -> None:
    scheduler = make_scheduler(6, 2, 4, 5)
    scheduler.submit(0, [1, 1], 4)
    scheduler.submit(1, [2, 2], 4)
    scheduler.plan()
    scheduler.feed([1, 2])
    for rid in (0, 1):
        scheduler.propose(rid, [7, 7, 7, 7, 7])
    # Two known tokens and a budget of 5 leave 3 drafts; 0 wants 4 tokens, so 2 can be drafts.
    assert ranges(scheduler) == [(0, 2, 5), (1, 2, 4)]
    scheduler.feed([9, 9])
    assert ranges(scheduler) == [(0, 3, 4), (1, 3, 4)]
    scheduler.feed([9, 9])
    assert scheduler.preempted() == []


def test_tokens_that_were_not_drafts_are_computed_next() -> None:
    scheduler = make_scheduler(8, 2, 4, 3)
    scheduler.submit(0, [1, 1], 8)
    scheduler.plan()
    scheduler.feed([[2, 3]])
    assert ranges(scheduler) == [(0, 2, 4)]
    scheduler.feed([4])
    scheduler.plan()
    scheduler.feed([[5, 6, 7, 8]])
    assert ranges(scheduler) == [(0, 5, 8)]
    scheduler.feed([POISON])
    assert ranges(scheduler) == [(0, 8, 9)]
    assert scheduler.feed([9]) == [0]
    assert scheduler.output(0) == [2, 3, 4, 5, 6, 7, 8, 9]


# ---------------------------------------------------------------- answers


def test_a_wrong_feed_changes_nothing() -> None:
    scheduler = make_scheduler(8, 2, 4, 16)
    scheduler.submit(0, [1, 2], 3)
    scheduler.plan()
    scheduler.feed([1])
    scheduler.submit(1, [1, 1, 1], 3)
    assert ranges(scheduler) == [(0, 2, 3), (1, 0, 3)]
    for wrong in ([1], [1, 2, 3], [1, -1], [1.5, 1], [1, "a"], [[], 1], [1, None]):
        with pytest.raises(BadInput):
            scheduler.feed(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="has not been fed"):
        scheduler.plan()
    scheduler.feed([3, 4])
    assert (scheduler.output(0), scheduler.output(1)) == ([1, 3], [4])


def test_an_id_may_be_used_again_between_plan_and_feed() -> None:
    scheduler = make_scheduler(8, 2, 4, 16)
    for rid in (0, 1, 2):
        scheduler.submit(rid, [rid, rid], 4)
    scheduler.plan()
    scheduler.abort(1)
    scheduler.feed([5, POISON, 6])
    scheduler.plan()
    scheduler.abort(0)
    scheduler.submit(0, [7], 2)
    scheduler.feed([POISON, 8])
    assert (scheduler.output(0), scheduler.output(2)) == ([], [6, 8])
    with pytest.raises(UnknownSequence):
        scheduler.output(1)


def test_refusal_counts_reserved_blocks_and_the_watermark() -> None:
    scheduler = Scheduler(make_reserved(11, 4), 4, 16, watermark=2)
    scheduler.submit(0, [1] * 20, 13)
    with pytest.raises(Refused, match=r"20 tokens and 14 new ones take 9 blocks \(5 for the prompt\).* 8,"):
        scheduler.submit(1, [1] * 20, 14)


@pytest.mark.parametrize(
    "arguments", [(-1, [1], 1), (0, [], 1), (0, [1.0], 1), (0, [1], 0), (0, [1], True), (0, [1], 1, "x")]
)
def test_bad_submits_are_named(arguments: tuple[Any, ...]) -> None:
    scheduler = Scheduler(make(8, 2), 4, 16, order="priority")
    with pytest.raises(BadInput):
        scheduler.submit(*arguments)
    assert not scheduler.has_work()


def test_bad_budgets_and_orders_are_named() -> None:
    for fields in ({"max_seqs": 0}, {"max_tokens": 0}, {"order": "sjf"}, {"watermark": 8}):
        with pytest.raises(BadInput):
            Scheduler(make(8, 2), **{"max_seqs": 1, "max_tokens": 1, **fields})  # type: ignore[arg-type]


def test_the_watermark_is_left_by_admissions_only() -> None:
    scheduler = Scheduler(make_uncached(6, 2), 4, 16, watermark=2)
    scheduler.submit(0, [1, 1, 1], 6)
    scheduler.submit(1, [1, 1, 1], 2)
    assert ranges(scheduler) == [(0, 0, 3), (1, 0, 3)]
    scheduler.feed([1, 1])
    scheduler.submit(2, [1], 1)
    assert ranges(scheduler) == [(0, 3, 4), (1, 3, 4)]


# ---------------------------------------------------------------- the queue


def test_a_head_that_is_stuck_is_tried_again_when_its_prefix_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = make_scheduler(8, 2, 4, 12)
    tried: list[int] = []
    start = Running.start

    def noted(self: Running, request: Request) -> bool:
        tried.append(request.rid)
        return start(self, request)

    monkeypatch.setattr(Running, "start", noted)
    scheduler.submit(0, [1] * 10, 5)
    scheduler.submit(1, [1] * 10 + [2], 1)  # fits once it can share
    scheduler.submit(2, [3] * 8, 1)  # fits when 0 has ended; the end of 1 is worth a look
    for expected in (
        [(0, 0, 10)],
        [(0, 10, 11), (1, 10, 11)],
        [(0, 11, 12)],
        [(0, 12, 13)],
        [(0, 13, 14)],
        [(2, 0, 8)],
    ):
        assert ranges(scheduler) == expected
        scheduler.feed([3] * len(expected))
    assert tried == [0, 1, 1, 2, 2, 2]


def test_the_queue_forgets_those_that_left() -> None:
    queue, requests = Waiting(), [Request(i, (0, i), np.array([1], np.int32), 1) for i in range(100)]
    for request in requests:
        queue.push(request)
    for request in requests[:90]:
        queue.leave(request)
    assert len(queue._heap) <= 20
    assert queue.head() is requests[90]
    queue.pop()
    requests[90].state = State.CHUNKS
    assert queue.head() is requests[91]


def test_outputs_of_the_finished_are_kept_in_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_OUTPUTS", 2)
    client = Client(make_scheduler(8, 2, 4, 16))
    for rid in range(3):
        client.submit(rid, [rid], 1)
        client.drain()
    assert client.scheduler.output(2) == client.tokens[2][1:]
    with pytest.raises(UnknownSequence):
        client.scheduler.output(0)

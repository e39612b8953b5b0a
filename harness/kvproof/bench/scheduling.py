"""The timed work of a scheduler: plan and feed for requests that all decode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvproof.bench.kept import owned
from kvproof.bench.prompts import Batches, draws, fixed
from kvproof.bench.subject import Subject, Unsupported, Wrong, blocks_for
from kvproof.bench.work import MAX_ROUNDS, Rounds, Work, expect

SHORTEST = 100
"""Tokens of the shortest prompt; the others are up to a block longer, so that in every step equally
many tables grow."""
SET_UP_STEPS = 64
"""Steps in which all prompts must be computed; their budget is all prompts in one step."""


def scheduler_step(s: Subject, sequences: int) -> Work:
    """Plan and feed steps in which every request decodes; a round is min(block_size, 64) steps.

    A plan names the tables of its rows, so these are part of its time. The number of rows of every step and,
    in the last one, the positions of all requests are checked in each round: so every request has computed
    each of them once. At the end the tables of one step more are checked: they hold what all rounds have
    given, and each of their blocks has one owner.
    """
    size = s.block_size
    steps = min(size, 64)
    prompts = [SHORTEST + rid % size for rid in range(sequences)]
    new = steps * (MAX_ROUNDS + 1) + SET_UP_STEPS
    usable = sequences * blocks_for(max(prompts) + new, size)
    scheduler = s.open_scheduler(usable, sequences, sum(prompts))
    tokens = Batches(sequences)
    counted: dict[str, float] = {}
    lengths: dict[int, int] = {}

    def turn(plan: Callable[[], Any], feeds: list[list[int]]) -> tuple[list[int], list[int], Any]:
        """One round: rows of every step, all who finished, and the last plan."""
        feed, counts, finished, rows = scheduler.feed, [], [], None
        for some in feeds:
            rows = plan()
            counts.append(len(rows))
            finished += feed(some[: len(rows)])
        return counts, finished, rows

    def check(rows: Any) -> None:
        expect("requests in a step", len({rid for rid, *_ in rows}), sequences)
        for rid, low, high, _ in rows:
            expect(f"tokens computed of request {rid}", high - low, 1)
            expect(f"positions of request {rid}", high, lengths[rid] - 1)

    def rounds() -> Rounds:
        lengths.update(_prefill(scheduler, prompts, new))
        for rng in draws():
            around = None if counted else Around(scheduler)
            plan = around.plan if around else scheduler.plan
            counts, finished, rows = yield partial(turn, plan, tokens.take(steps, rng, "list"))
            if set(counts) != {sequences} or finished:
                raise Wrong(
                    f"{sorted(set(counts))} rows a step and {len(finished)} ends, expected {sequences}, 0"
                )
            lengths.update({rid: length + steps for rid, length in lengths.items()})
            check(rows)
            if around:
                counted.update(around.found())

    def recheck() -> None:
        if not counted:
            return
        lengths.update({rid: length + 1 for rid, length in lengths.items()})
        rows = [(rid, low, high, list(table)) for rid, low, high, table in scheduler.plan()]
        check(rows)
        total = owned(s, [table[: blocks_for(high, size)] for *_, high, table in rows], [r[2] for r in rows])
        free = scheduler.free_blocks()
        if free + total > usable:
            raise Wrong(f"{free} free blocks and {total} in tables are more than the {usable} there are")

    return Work("ns/sequence", sequences * steps, rounds(), counted, recheck)


class Around:
    """Exact counters of a round: blocks taken, tokens computed, requests preempted."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.computed = scheduler, 0
        scheduler.preempted()
        self.free: int = scheduler.free_blocks()

    def plan(self) -> Any:
        """The plan of the scheduler, counted."""
        rows = self.scheduler.plan()
        self.computed += sum(high - low for _, low, high, _ in rows)
        return rows

    def found(self) -> dict[str, float]:
        """blocks: fewer of them are free."""
        blocks, preempted = self.free - self.scheduler.free_blocks(), len(self.scheduler.preempted())
        return {"blocks": blocks, "computed_tokens": self.computed, "preemptions": preempted}


def _prefill(scheduler: Any, prompts: list[int], new: int) -> dict[int, int]:
    """Submit these prompts and step until each has sampled; known tokens of every request."""
    for rid, length in enumerate(prompts):
        scheduler.submit(rid, fixed(length, rid), new)
    lengths = dict(enumerate(prompts))
    for _ in range(SET_UP_STEPS):
        rows = scheduler.plan()
        for rid, _low, high, _table in rows:
            lengths[rid] += high == lengths[rid]
        scheduler.feed([2000] * len(rows))
        if all(lengths[rid] > length for rid, length in enumerate(prompts)):
            return lengths
    raise Unsupported(f"left out: {SET_UP_STEPS} steps do not compute {len(prompts)} prompts")

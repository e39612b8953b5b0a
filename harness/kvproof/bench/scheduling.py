"""The timed work of a scheduler: plan and feed for requests that all decode."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof.bench.subject import Subject, Unsupported, Wrong, blocks_for
from kvproof.bench.work import MAX_ROUNDS, Rounds, Work, expect

SHORTEST = 100
"""Tokens of the shortest prompt; the others are up to a block longer, so that in every step equally
many tables grow."""
SET_UP_STEPS = 64
"""Steps in which all prompts must be computed; their budget is all prompts in one step."""


def scheduler_step(s: Subject, sequences: int) -> Work:
    """Plan and feed steps in which every request decodes; a round is min(block_size, 64) steps."""
    size = s.block_size
    steps = min(size, 64)
    prompts = [SHORTEST + rid % size for rid in range(sequences)]
    new = steps * (MAX_ROUNDS + 1) + SET_UP_STEPS
    usable = sequences * blocks_for(max(prompts) + new, size)
    scheduler = s.open_scheduler(usable, sequences, sum(prompts))

    def turn() -> tuple[list[int], list[int], Any]:
        """One round: rows of every step, all who finished, and the last plan."""
        plan, feed, counts, finished = scheduler.plan, scheduler.feed, [], []
        tokens, rows = [2000] * sequences, None
        for _ in range(steps):
            rows = plan()
            counts.append(len(rows))
            finished += feed(tokens[: len(rows)])
        return counts, finished, rows

    def rounds() -> Rounds:
        lengths = _prefill(scheduler, prompts, new)
        while True:
            counts, finished, rows = yield turn
            if set(counts) != {sequences} or finished:
                raise Wrong(
                    f"{sorted(set(counts))} rows a step and {len(finished)} ends, expected {sequences}, 0"
                )
            lengths = {rid: length + steps for rid, length in lengths.items()}
            expect("requests in a step", len({rid for rid, *_ in rows}), sequences)
            for rid, low, high, _ in rows:
                expect(f"tokens computed of request {rid}", high - low, 1)
                expect(f"positions of request {rid}", high, lengths[rid] - 1)

    return Work("ns/sequence", sequences * steps, rounds())


def _prefill(scheduler: Any, prompts: list[int], new: int) -> dict[int, int]:
    """Submit these prompts and step until each has sampled; known tokens of every request."""
    for rid, length in enumerate(prompts):
        tokens = np.random.default_rng(rid).integers(1000, 150_000, length).tolist()
        scheduler.submit(rid, tokens, new)
    lengths = dict(enumerate(prompts))
    for _ in range(SET_UP_STEPS):
        rows = scheduler.plan()
        for rid, _low, high, _table in rows:
            lengths[rid] += high == lengths[rid]
        scheduler.feed([2000] * len(rows))
        if all(lengths[rid] > length for rid, length in enumerate(prompts)):
            return lengths
    raise Unsupported(f"left out: {SET_UP_STEPS} steps do not compute {len(prompts)} prompts")

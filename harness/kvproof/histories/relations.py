"""META-001: runs that must give the same outputs, one aspect changed between them.

Their model samples by what it reads through the block tables, so that foreign KV changes an output as
it would change a real one. No oracle is asked: two runs are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvproof.histories.directed.scheduling import Load
from kvproof.histories.play import next_token
from kvproof.records import Case, Observation

SHARED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
REQUESTS = tuple((SHARED[:prompt], new) for prompt, new in ((9, 7), (5, 12), (14, 3), (1, 9), (8, 8), (9, 7)))
"""(prompt, max_new) of a load with equal prompts in it; all of it in 24 blocks of 4."""
FIRST_OTHER = 100
"""Requests from here on are not compared."""
READS = {"model": "reads"}


class Relation(NamedTuple):
    """The requests of `one` and of `other` must have the same outputs; each case is a run of its own."""

    what: str
    one: tuple[Case, ...]
    other: tuple[Case, ...]
    needs: tuple[str, ...] = ()


def _turns() -> tuple[tuple[list[int], int], ...]:
    """A conversation: each prompt is the one before, its output, and something new. Then the last again.

    Every turn ends at the end of a block of 4, whose last token is sampled and never computed.
    """
    turns: list[tuple[list[int], int]] = []
    history: list[int] = []
    for said, new in (([2, 7, 1, 8, 2], 7), ([8, 1, 8], 5), ([2, 8, 4, 5], 8)):
        history += said
        turns.append((list(history), new))
        for _ in range(new):
            history.append(next_token(history))
    return (*turns, turns[-1])


def _together(blocks: int, size: int, seqs: int, tokens: int, load: Load | None = None) -> tuple[Case, ...]:
    """All requests at once, behind what `load` has done."""
    load = load or Load()
    for rid, (prompt, new) in enumerate(REQUESTS):
        load.submit(rid, prompt, new)
    return (_case(load, (blocks, size, seqs, tokens)),)


def _alone(requests: Iterable[tuple[list[int], int]]) -> tuple[Case, ...]:
    """Each on a scheduler that has seen nothing."""
    loads = (Load().submit(rid, prompt, new) for rid, (prompt, new) in enumerate(requests))
    return tuple(_case(load, (200, 4, 8, 256)) for load in loads)


def _in_turn(requests: Iterable[tuple[list[int], int]]) -> tuple[Case, ...]:
    """One after another on one scheduler, each with the cache that those before have left."""
    load = Load()
    for rid, (prompt, new) in enumerate(requests):
        load.op("drain", args=READS)
        load.submit(rid, prompt, new)
    return (_case(load, (200, 4, 8, 256)),)


def _scrambled() -> Load:
    """Eight others fill the pool and leave in an order that gives high blocks to who comes next.

    A pool hands out again what came back first, or last: both of these were taken late.
    """
    load = Load()
    for place in range(8):
        load.submit(FIRST_OTHER + place, [50 + place] * 93, 8)
    load.steps(3)
    for place in (7, 3, 0, 4, 1, 5, 2, 6):
        load.abort(FIRST_OTHER + place)
    return load


def _case(load: Load, shape: tuple[int, int, int, int]) -> Case:
    load.op("drain", args=READS)
    return load.load("meta", "META-001", shape)


ROOMY = _together(200, 4, 8, 256)

RELATIONS: dict[str, Relation] = {
    "cached": Relation(
        "requests that find others' blocks in the cache as on an empty one",
        _alone(_turns()),
        _in_turn(_turns()),
        ("prefix",),
    ),
    "block-size-1": Relation("blocks of 1 token as of 4", ROOMY, _together(800, 1, 8, 256)),
    "block-size-16": Relation("blocks of 16 tokens as of 4", ROOMY, _together(50, 16, 8, 256)),
    "chunked": Relation(
        "prompts in chunks of at most 3 tokens as whole",
        _together(200, 4, 3, 256),
        _together(200, 4, 3, 3),
        ("chunked",),
    ),
    "preempted": Relation("7 blocks, with preemptions, as with 200", ROOMY, _together(7, 4, 8, 256)),
    "relabelled": Relation("with other blocks", ROOMY, _together(200, 4, 8, 256, _scrambled())),
    "alone": Relation("each request alone as beside the others", ROOMY, _alone(REQUESTS)),
}
"""By name; each changes one thing."""


def compared(cases: Sequence[Case]) -> set[int]:
    """Requests whose outputs count."""
    rids = {op.seq for case in cases for op in case.history if op.op == "submit"}
    return {rid for rid in rids if rid < FIRST_OTHER}


def outputs(observations: Sequence[Observation]) -> dict[int, list[int]]:
    """Request -> the tokens that the subject says it generated, at its end."""
    found: dict[int, list[int]] = {}
    for seen in observations:
        for step in seen.value or []:
            found.update(step.get("outputs", {}))
    return found

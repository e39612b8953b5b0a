"""META-001: pairs of runs that must give the same outputs, one aspect changed between them."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.histories.directed.scheduling import Load
from kvproof.records import Case, Observation

REQUESTS = ((9, 7), (5, 12), (14, 3), (1, 9), (8, 8), (9, 7))
"""(prompt, max_new) of a load with equal prompts in it."""
SHARED = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]


def _load(blocks: int, size: int, seqs: int, tokens: int) -> Case:
    load = Load()
    for rid, (prompt, new) in enumerate(REQUESTS):
        load.submit(rid, SHARED[:prompt], new)
    return load.drain().load("meta", "META-001", (blocks, size, seqs, tokens))


ROOMY = _load(200, 4, 8, 256)

RELATIONS: dict[str, tuple[Case, Case]] = {
    "block-size-1": (ROOMY, _load(800, 1, 8, 256)),
    "block-size-16": (ROOMY, _load(50, 16, 8, 256)),
    "chunked": (ROOMY, _load(200, 4, 8, 3)),
    "preempted": (ROOMY, _load(7, 4, 8, 256)),
    "preempted-and-chunked": (ROOMY, _load(7, 4, 8, 3)),
    "one-at-a-time": (ROOMY, _load(200, 4, 1, 256)),
}
"""Name -> a run with room for everything, and one that differs in the named way."""


def outputs(observations: Sequence[Observation]) -> dict[int, list[int]]:
    """Request -> the tokens that the subject says it generated, at its end."""
    found: dict[int, list[int]] = {}
    for seen in observations:
        for step in seen.value or []:
            found.update(step.get("outputs", {}))
    return found

"""What the results keep of the observations of a history, for reports that show it step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.records import Case, Observation
from kvproof.report.steps import LEFT_OUT

MOST_DRAWN = 40
"""Operations of the longest history whose observations go into the results."""
MOST_STEPS = 24
"""Steps of a scheduler that are kept of one operation: the first third and the last."""
_OF_STEPS = ("rows", "preempted", "rejected", "finished")
_OF_RANKS = ("epoch", "free", "lost", "tables")


def drawn(case: Case, seen: Sequence[Observation]) -> tuple[Observation, ...]:
    """Tables, references and writes of a manager, plans of a scheduler, epochs and tables of ranks; what was
    answered, and the exception; nothing of kernels and of long histories."""
    if case.profile == "kernel" or len(case.history) > MOST_DRAWN:
        return ()
    return tuple(
        s.model_copy(update={"value": _kept(s.value), "reads": {}, "selfcheck": ()})
        for s in seen[: len(case.history)]
    )


def _kept(value: Any) -> Any:
    if isinstance(value, int | str | None):
        return value
    if isinstance(value, dict) and "state" in value:
        state = {rank: {name: one[name] for name in _OF_RANKS} for rank, one in value["state"].items()}
        return {"state": state, "dead": value["dead"], "stopped": value["stopped"]}
    if isinstance(value, list) and value and all(isinstance(s, dict) and "rows" in s for s in value):
        steps = [{name: s[name] for name in _OF_STEPS if s.get(name)} for s in value]
        first, last = MOST_STEPS // 3, MOST_STEPS - MOST_STEPS // 3
        middle = [{LEFT_OUT: len(steps) - MOST_STEPS}]
        return steps if len(steps) <= MOST_STEPS else steps[:first] + middle + steps[-last:]
    return None

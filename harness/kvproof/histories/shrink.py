"""Shrinks a failing history: fewer operations, then shorter and smaller tokens."""

from __future__ import annotations

from collections.abc import Callable

from kvproof.records import Case, Operation

Fails = Callable[[Case], bool]
"""True if the case still shows the finding that is looked for."""


def shrink(case: Case, fails: Fails, budget: int = 400) -> Case:
    """The shortest case found that still fails, within `budget` runs."""
    left = budget

    def still(history: list[Operation]) -> bool:
        nonlocal left
        if left <= 0:
            return False
        left -= 1
        return fails(case.model_copy(update={"history": tuple(history)}))

    history = _fewer(list(case.history), still)
    history = _simpler(history, still)
    history = _fewer(history, still)
    return case.model_copy(update={"history": tuple(history)})


def _fewer(history: list[Operation], still: Callable[[list[Operation]], bool]) -> list[Operation]:
    """Drop runs of operations, long ones first."""
    width = max(1, len(history) // 2)
    while width:
        start = len(history) - width
        while start >= 0:
            shorter = history[:start] + history[start + width :]
            if shorter and still(shorter):
                history = shorter
            start -= width if start >= width else max(start, 1)
        width //= 2
    for seq in {op.seq for op in history if isinstance(op.seq, int)}:  # a sequence as a whole
        shorter = [op for op in history if op.seq != seq and op.child != seq]
        if shorter and len(shorter) < len(history) and still(shorter):
            history = shorter
    return history


def _simpler(history: list[Operation], still: Callable[[list[Operation]], bool]) -> list[Operation]:
    """Shorten the tokens of each operation."""
    for i, op in enumerate(history):
        while history[i].tokens and len(history[i].tokens or ()) > 1 and not op.args and not op.expect:
            tokens = history[i].tokens or ()
            if history[i].op == "append_batch":
                break
            for shorter in (tokens[: len(tokens) // 2], tokens[:-1], tokens[1:]):
                candidate = history[i].model_copy(update={"tokens": shorter})
                changed = [*history[:i], candidate, *history[i + 1 :]]
                if shorter and still(changed):
                    history = changed
                    break
            else:
                break
    return history

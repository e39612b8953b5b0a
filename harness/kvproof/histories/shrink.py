"""Shrinks a failing history: fewer operations, then shorter tokens.

An add or append and the commit behind it are dropped together, so that what is left is legal for a
subject without `defer` too.
"""

from __future__ import annotations

from collections.abc import Callable

from kvproof.records import Case, Operation

Fails = Callable[[Case], bool]
"""True if the case still shows the finding that is looked for."""

Unit = tuple[Operation, ...]
"""Operations that belong together."""


def shrink(case: Case, fails: Fails, budget: int = 400) -> Case:
    """The shortest case found that still fails, within `budget` runs."""
    left = budget

    def still(units: list[Unit]) -> bool:
        nonlocal left
        if left <= 0 or not units:
            return False
        left -= 1
        return fails(_with(case, units))

    bare = case.model_copy(
        update={"history": tuple(op.model_copy(update={"expect": None}) for op in case.history)}
    )
    if bare != case:  # what a shorter history must give is not known
        if not fails(bare):
            return case
        case = bare
    units = _fewer(_units(case.history), still)
    units = _simpler(units, still)
    units = _fewer(units, still)
    return _with(case, units)


def _with(case: Case, units: list[Unit]) -> Case:
    return case.model_copy(update={"history": tuple(op for unit in units for op in unit)})


def _units(history: tuple[Operation, ...]) -> list[Unit]:
    units: list[Unit] = []
    for op in history:
        last = units[-1][-1] if units else None
        whole = op.op == "commit" and last is not None and last.op in ("add", "append") and last.seq == op.seq
        step = op.op == "commit_batch" and last is not None and last.op == "append_batch"
        if whole or step:
            units[-1] = (*units[-1], op)
        else:
            units.append((op,))
    return units


def _fewer(units: list[Unit], still: Callable[[list[Unit]], bool]) -> list[Unit]:
    """Drop runs of units, long ones first, and sequences as a whole."""
    for seq in sorted({u[0].seq for u in units if isinstance(u[0].seq, int)}):
        shorter = [u for u in units if u[0].seq != seq and u[0].child != seq]
        if len(shorter) < len(units) and still(shorter):
            units = shorter
    width = max(1, len(units) // 2)
    while width:
        start = len(units) - width
        while start >= 0:
            shorter = units[:start] + units[start + width :]
            if still(shorter):
                units = shorter
            start -= width if start >= width else max(start, 1)
        width //= 2
    return units


def _simpler(units: list[Unit], still: Callable[[list[Unit]], bool]) -> list[Unit]:
    """Shorten the tokens of each add and append."""
    for i, unit in enumerate(units):
        first = unit[0]
        if first.op not in ("add", "append") or first.args or first.expect:
            continue
        while len(tokens := units[i][0].tokens or ()) > 1:
            for shorter in (tokens[: len(tokens) // 2], tokens[:-1], tokens[1:]):
                changed = (units[i][0].model_copy(update={"tokens": shorter}), *unit[1:])
                candidate = [*units[:i], changed, *units[i + 1 :]]
                if still(candidate):
                    units = candidate
                    break
            else:
                break
    return units


def shrink_kernel(case: Case, fails: Fails, budget: int = 40) -> Case:
    """Fewer calls, then fewer and shorter sequences, within about `budget` runs."""
    if len(case.history) > 1:
        case = shrink(case, fails, budget // 2)
    left = budget // 2
    while left > 0 and case.kernel is not None:
        lengths = case.kernel.lengths
        fewer = [lengths[:i] + lengths[i + 1 :] for i in range(len(lengths)) if len(lengths) > 1]
        shorter = [
            (*lengths[:i], m, *lengths[i + 1 :])
            for i, n in enumerate(lengths)
            for m in (n // 2, n - 1)
            if 0 < m < n
        ]
        bound = any(op.args and {"queries", "rows", "lengths"} & set(op.args) for op in case.history)
        for candidate in [] if bound or case.kernel.queries else fewer + shorter:
            left -= 1
            smaller = case.model_copy(
                update={"kernel": case.kernel.model_copy(update={"lengths": candidate})}
            )
            if fails(smaller):
                case = smaller
                break
            if left <= 0:
                return case
        else:
            return case
    return case

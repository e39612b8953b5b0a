"""Exact counters of the one round of a cell that is counted: the first behind its set-up, never timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TIMED = frozenset(
    (
        *("round_us", "warm_up", "left_out", "disturbed", "waited", "loop"),
        *("ratio", "ratio_low", "ratio_high"),
    )
)
"""Counters of a timed cell that are none of these."""


class Around:
    """What can be read of a manager before a round, and what has changed behind it.

    Args:
        seqs: live sequences whose tables the round may change.
    """

    def __init__(self, manager: Any, seqs: Iterable[int] = ()) -> None:
        self.manager = manager
        self.tables = {seq: list(manager.table(seq)) for seq in seqs}
        self._copies()
        self.free: int = manager.free_blocks()

    def found(self, new: Iterable[int] = ()) -> dict[str, float]:
        """Counters of what has happened since.

        blocks: fewer of them are free. changed_entries: of the tables, those of `new` sequences included.
        copies: that `copies()` has reported, if it is there.
        """
        found: dict[str, float] = {"blocks": self.free - self.manager.free_blocks()}
        before: dict[int, Sequence[int]] = {**self.tables, **dict.fromkeys(new, ())}
        if before:
            after = {seq: list(self.manager.table(seq)) for seq in before}
            found["changed_entries"] = sum(changed(before[seq], after[seq]) for seq in before)
        if (copies := self._copies()) is not None:
            found["copies"] = copies
        return found

    def _copies(self) -> int | None:
        return len(self.manager.copies()) if "copies" in self.manager.capabilities else None


def changed(before: Sequence[int], after: Sequence[int]) -> int:
    """Entries of a table that are new in it, or others than they were."""
    more = max(0, len(after) - len(before))
    return more + sum(a != b for a, b in zip(before, after, strict=False))


def exact(counters: Mapping[str, float]) -> dict[str, float]:
    """Those of a timed cell's counters that are equal in every run of the same code."""
    return {k: v for k, v in counters.items() if k not in TIMED}


def differ(one: Mapping[str, float], other: Mapping[str, float], where: str) -> str:
    """Which counters of the same input differ, with both values; "" if none does."""
    names = [k for k in {**one, **other} if one.get(k) != other.get(k)]
    return ", ".join(f"{k} {one.get(k, 0):,g} and {other.get(k, 0):,g}" for k in names) + (
        f": of the same input, in two {where}" if names else ""
    )

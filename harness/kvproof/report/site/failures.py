"""What an implementation's page shows of each failure: as much as a page may hold, and each history once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.records import Observation, Result, Verdict
from kvproof.report.slim import again
from kvproof.report.steps import told
from kvproof.report.summary import Failure, Summary

MOST_WHOLE = 500
"""Failures of all pages together that have an article each. Of a page these are the first ones, and at least
`WHOLE`; the others are rows of its table."""
WHOLE = 10
MOST_BYTES = 1_000_000
"""Of the histories of all pages together; each has an equal share."""
ENDED = (Verdict.ERROR, Verdict.TIMEOUT)


@dataclass(frozen=True)
class Shown:
    """A failure as a page shows it."""

    failure: Failure
    whole: bool
    """In an article of its own."""
    drawing: str
    """What the page's script draws, as JSON; "" for nothing."""
    operations: tuple[str, ...]
    """The history in words; empty where it is not shown."""
    line: str
    """The command that runs it again."""
    same: str = ""
    """An earlier failure of this page that has the same history."""

    @property
    def pattern(self) -> str:
        """The command with ID for the requirement: the same for most failures of a page."""
        return self.line.replace(self.failure.requirement.id, "ID")


def shares(numbers: Sequence[int]) -> tuple[int, int]:
    """(articles, bytes of histories) that a page may have, of pages with so many failures each."""
    articles = WHOLE
    while articles < max(numbers, default=0) and sum(min(n, articles + 1) for n in numbers) <= MOST_WHOLE:
        articles += 1
    return articles, MOST_BYTES // max(1, sum(n > 0 for n in numbers))


def shown(summary: Summary, articles: int, room: int) -> list[Shown]:
    """The failures of an implementation in order, the known ones last, within the shares of its page."""
    found: list[Shown] = []
    drawn_by: dict[tuple[str, ...], str] = {}
    for failure in (*summary.failures, *summary.known):
        whole = len(found) < articles
        lines, picture = tuple(operations(failure)), drawn(failure.result) if whole else ""
        key = failure.pool(), str(failure.result.slot), *lines
        same = drawn_by.get(key, "") if lines else ""
        if same or sum(map(len, lines)) > room:
            lines = ()
        room -= sum(map(len, lines))
        if not lines or len(picture) > room:
            picture = ""
        room -= len(picture)
        if lines:
            drawn_by[key] = failure.requirement.id
        line = failure.result.replay or again(summary.file.header, failure.requirement.id)
        found.append(Shown(failure, whole, picture, lines, line, same))
    return found


def drawn(result: Result) -> str:
    """What the page's script draws of a failing history, as JSON; "" if no table was kept."""
    if not any(seen.tables for seen in result.observed):
        return ""
    steps = []
    before = Observation(outcome="ok")
    at, kept = result.step, list(result.observed)
    if at == len(kept) and (why := _ended(result)):
        kept.append(Observation(outcome="error", detail=why))
    for op, seen in zip(result.history, kept, strict=False):
        # After an exception nothing could be read: what was held before it is shown.
        held = before if seen.outcome == "error" else seen
        step = {
            "op": str(op),
            "outcome": seen.outcome + (f": {seen.detail}" if seen.detail else ""),
            "value": seen.value if isinstance(seen.value, int | str | None) else None,
            "free": held.free,
            "tables": held.tables,
            "refs": held.refs,
            "copies": seen.copies,
            "writes": [[block, offset, seq, position] for _, block, offset, seq, position in seen.writes],
        }
        steps.append(step)
        before = held
    what = {"steps": steps, "at": at, "slot": result.slot, "size": result.block_size}
    return json.dumps(what, separators=(",", ":"))


def operations(failure: Failure) -> list[str]:
    """The history, an operation a line, with what was answered where that was kept, and below it the plans of
    a scheduler or what each rank holds; the exception or the hang that ended it at its operation."""
    result, seen = failure.result, failure.result.observed
    lines = []
    for step, line in enumerate(failure.history()):
        text, mark, rest = line.partition("  <- ")
        if step < len(seen):
            one = seen[step]
            value = f" = {one.value}" if isinstance(one.value, int | str) else ""
            detail = f": {one.detail}" if one.detail and one.outcome != "ok" else ""
            free = f"  (free {one.free})" if one.free is not None else ""
            text += f" → {one.outcome}{value}{detail}{free}"
        elif step == result.step and (why := _ended(result)):
            text += f" → {why}"
        lines.append(text + mark + rest)
        lines += [f"       {more}" for more in (told(seen[step].value) if step < len(seen) else ())]
    return lines


def _ended(result: Result) -> str:
    """How a history ended that has no observation at its last operation; of a known one as it was got."""
    if result.verdict in ENDED:
        return f"{result.verdict}: {result.reason}"
    known = result.verdict is Verdict.XFAIL and result.got.partition(": ")[0] in ENDED
    return result.got if known else ""

"""What the compare page says of two benchmark runs: the verdicts of `kvproof compare`, made beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvproof.records import Sample
from kvproof.report.compare import Key, differences
from kvproof.report.results import ResultFile, ResultsError

TIMES = ("slower", "faster", "unclear")
"""Words that the verdict of a time tells already."""
MOST_POINTS = 6000
"""Points of all pairs together: the page stays small, and is made in seconds."""


def compared(files: Sequence[ResultFile]) -> dict[str, dict[str, Any]]:
    """ "3/5" -> what `kvproof compare` says of the 3rd file as before and the 5th as after.

    Runs of the same implementations come first, the newest first of those, until there are `MOST_POINTS`.
    """
    found: dict[str, dict[str, Any]] = {}
    points = 0
    for i, j in _pairs(files):
        if points + len(files[j].samples) > MOST_POINTS:
            continue
        try:
            what = differences([files[i]], [files[j]])
        except ResultsError:  # such as a file that holds a point twice: it is not told on this page
            continue
        points += len(what.times)
        old, new = _medians(files[i]), _medians(files[j])
        names = {s.implementation for s in files[j].samples}
        rows = []
        for key, c in what.times.items():
            before = old[key]
            after = new.get(key) or new[next(iter(names)), key[1], key[2]]
            numbers = [float(f"{x:.4g}") for x in (before.median, after.median, c.ratio, c.low, c.high)]
            rows.append([_name(key), before.unit, *numbers, c.verdict])
        floor = max((c.floor for c in what.times.values()), default=0.0)
        told = [[item.word, item.text] for item in what.items if item.word not in TIMES]
        found[f"{i}/{j}"] = {"notes": what.notes, "floor": round(floor, 4), "times": rows, "told": told}
    return found


def _pairs(files: Sequence[ResultFile]) -> Iterator[tuple[int, int]]:
    """(older, newer) benchmark runs that have a point in common, or one implementation each."""
    runs = [i for i, f in enumerate(files) if f.header.what == "bench" and f.footer.complete]
    pairs = [(i, j) for at, j in enumerate(runs) for i in runs[:at]]
    pairs.sort(key=lambda p: (_named(files[p[0]]) != _named(files[p[1]]), -p[1], -p[0]))
    for i, j in pairs:
        a, b = _named(files[i]), _named(files[j])
        if a & b or len(a) == len(b) == 1:
            yield i, j


def _named(file: ResultFile) -> frozenset[str]:
    return frozenset(s.implementation for s in file.samples)


def _medians(file: ResultFile) -> dict[Key, Sample]:
    return {(s.implementation, s.cell, json.dumps(s.parameters, sort_keys=True)): s for s in file.samples}


def _name(key: Key) -> str:
    point = ", ".join(f"{k} {v}" for k, v in json.loads(key[2]).items())
    return f"{key[0]}: {key[1]}, {point}" if point else f"{key[0]}: {key[1]}"

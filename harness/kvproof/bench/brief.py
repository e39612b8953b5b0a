"""The short table that a person reads last: each cell at its telling points only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.records import Sample
from kvproof.stats import median


@dataclass(frozen=True)
class Telling:
    """Points of one cell, as a row each.

    what: filled in from the parameters of the point.
    at: parameters that a point must have; others are free.
    value: counter to show in the place of the median.
    unit: of that counter.
    """

    what: str
    cell: str
    at: dict[str, Any]
    value: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Row:
    """cells: one text for each implementation."""

    what: str
    unit: str
    cells: tuple[str, ...]


CAPTION = "lengths in tokens; median (per turn of a fixed Python loop); x: of the first"

_STEP = {"sequences": 1024, "form": "list", "order": "same"}
_LONG = {"tokens": 32_768, "form": "list"}
_PROMPT = {"tokens": 8192, "form": "list"}

TELLING = (
    Telling("decode step, {sequences:,} sequences", "decode_step", {**_STEP, "caching": True}),
    Telling("admit {tokens:,}, no cache", "admit_cold", _LONG),
    Telling("admit {tokens:,}, {cached:.0%} cached", "admit_prefix", {**_PROMPT, "cached": 0.0}),
    Telling("admit {tokens:,}, {cached:.0%} cached", "admit_prefix", {**_PROMPT, "cached": 1.0}),
    Telling("free {tokens:,}, cache {caching}", "free", {"tokens": 8192}),
    Telling("fork {tokens:,}", "fork", {"tokens": 8192}),
    Telling("batch tensor of {sequences:,}", "batch", {"sequences": 1024, "order": "same"}),
    Telling("growth with the pool", "pool_growth", {}),
    Telling("metadata, cache {caching}", "memory", {}),
    Telling("tokens for the check", "memory", {"caching": True}, "token_bytes_block", "bytes/block"),
    Telling("pool of {blocks:,} made in", "memory", {"caching": True}, "create_ms", "ms"),
    Telling("hit rate (ceiling), {capacity_tokens}", "replay", {}, "hit_rate", "of tokens"),
    Telling("replay a request, {capacity_tokens}", "replay", {}),
    Telling("scheduler step, {sequences:,} requests", "scheduler_step", {}),
    Telling("serve: a step on this host, {capacity_tokens}", "scheduler_replay", {}),
    Telling("serve: first token p90, {capacity_tokens}", "scheduler_replay", {}, "ttft_p90_s", "s, virtual"),
    Telling("serve: preemptions, {capacity_tokens}", "scheduler_replay", {}, "preemptions", "requests"),
)


def number(x: float) -> str:
    """Three digits that matter, thousands set apart."""
    if x != x:
        return ""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def rows(samples: Sequence[Sample]) -> tuple[list[str], list[Row]]:
    """The implementations, and a row for each telling point that was run."""
    told = {telling.cell for telling in TELLING}
    names = list(dict.fromkeys(s.implementation for s in samples if s.cell in told))
    found = []
    for telling in TELLING:
        points: dict[str, dict[str, Sample]] = {}
        for s in samples:
            if s.cell == telling.cell and telling.at.items() <= s.parameters.items():
                points.setdefault(str(s.parameters), {})[s.implementation] = s
        for point in points.values():
            some = next((s for s in point.values() if s.rounds), next(iter(point.values())))
            what = telling.what.format(**{k: _plainly(k, v) for k, v in some.parameters.items()})
            most = max(_requests(s) for s in point.values())
            cells = tuple(_cell(point.get(name), telling, most) for name in names)
            found.append(Row(what, telling.unit or some.unit, cells))
    return names, found


def _plainly(name: str, value: Any) -> Any:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name == "capacity_tokens" and isinstance(value, int) and value % 1024 == 0:
        return f"{value // 1024:,} Ki"
    return value


def _requests(s: Sample) -> float:
    """Of a trace, that it has served; 0 in other cells."""
    return s.counters.get("requests_run", s.counters.get("finished", 0)) if s.rounds else 0


def _cell(s: Sample | None, telling: Telling, most: float) -> str:
    """`most`: requests that another implementation has served; figures of fewer do not compare."""
    if s is None:
        return ""
    if not s.rounds:
        return _why(s.note)
    if _requests(s) < most:
        value = s.counters.get(telling.value, float("nan")) if telling.value else s.median
        return f"{number(value)}, only {_requests(s):,.0f} of {most:,.0f} requests"
    if telling.value == "hit_rate":
        return f"{s.counters['hit_rate']:.4f} ({s.counters['ceiling']:.4f})"
    if telling.value:
        return number(s.counters.get(telling.value, float("nan")))
    text = number(s.median) + (f" ({number(s.per_cal)})" if s.per_cal is not None else "")
    floor = f" ±{s.floor:.1%}" if s.floor is not None else ""
    return text + (f" {number(s.counters['ratio'])}x{floor}" if "ratio" in s.counters else "")


def _why(note: str) -> str:
    """Why there is no number, in a word or two."""
    kind, _, rest = note.partition(": ")
    return "left out" if rest.startswith("left out") else kind


def floors(samples: Sequence[Sample]) -> str:
    """How far apart equal implementations were measured, in words; empty where it was not asked."""
    found = [s.floor for s in samples if s.floor is not None]
    if not found:
        return ""
    several = [len(s.processes) for s in samples if s.processes]
    processes = " to ".join(map(str, sorted({min(several, default=1), max(several, default=1)})))
    return (
        f"timed cells: medians of {processes} processes; ±: how far apart a cell measured two equal ones, "
        f"{median(found):.1%} in half of the cells, {max(found):.1%} at most"
    )

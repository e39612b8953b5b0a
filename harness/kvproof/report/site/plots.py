"""Charts of the pages, as Vega-Lite specifications; altair makes them and the browser draws them."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from kvproof.derived import Past
from kvproof.records import Sample
from kvproof.report import charts, history
from kvproof.report.attention import BARS, frame
from kvproof.report.site.gather import Cell

Chart = tuple[str, str]
"""(title, Vega-Lite specification as JSON)."""
MOST = 12
"""Implementations with a colour of their own; a chart of more says so and shows the fastest."""


def of(cell: Cell) -> list[Chart]:
    """The charts of a workload; none without altair."""
    if importlib.util.find_spec("altair") is None:
        return []
    alt: Any = importlib.import_module("altair")
    alt.data_transformers.disable_max_rows()
    measured = [s for s in cell.samples if s.rounds]
    if not measured:
        return []
    if cell.name == "attention":
        return _attention(alt, measured)
    found = [c for unit in cell.units for c in _curve(alt, [s for s in measured if s.unit == unit])]
    if any("ceiling" in s.counters for s in measured):
        found.append(("Prefix hit rate beside its ceiling", _hits(alt, measured)))
    return found


def over_time(points: Sequence[dict[str, Any]]) -> list[Chart]:
    """Trace replay: what ran, what was free and what was wasted, over the trace's own time."""
    if not points or importlib.util.find_spec("altair") is None:
        return []
    alt: Any = importlib.import_module("altair")
    data = pd.DataFrame(points)
    data["implementation"] = data["implementation"] + " at " + data["capacity_tokens"].map("{:,}".format)
    found = []
    for column, title in (
        ("running", "Running sequences"),
        ("waiting", "Waiting requests"),
        ("free_blocks", "Free blocks"),
        ("hit_tokens", "Tokens served from the prefix cache"),
        ("waste", "Slots without a token, share of those held"),
    ):
        chart = (
            alt.Chart(data[["implementation", "virtual_s", column]])
            .mark_line(strokeWidth=1)
            .encode(
                x=alt.X("virtual_s:Q", title="time in the trace, s"),
                y=alt.Y(f"{column}:Q", title=None),
                color=alt.Color("implementation:N", title=None),
            )
            .properties(width="container", height=180)
        )
        found.append((title, _text(chart)))
    return found


def of_past(past: Sequence[Past]) -> list[Chart]:
    """A workload over the runs: a line a point, a rule where a lasting change begins."""
    if importlib.util.find_spec("altair") is None:
        return []
    alt: Any = importlib.import_module("altair")
    rows: list[dict[str, Any]] = []
    marks = {(c.implementation, c.point, c.at.started): str(c) for c in history.changes(past)}
    for (name, point), values in history.series(past).items():
        cell, _, where = point.partition(": ")
        for p, value in values:
            mark = marks.get((name, point, p.started))
            who = {"implementation": name, "point": where, "cell": cell, "change": mark}
            rows.append(who | {"run": p.started, "value": value})
    found = []
    for cell in dict.fromkeys(row["cell"] for row in rows):
        data = pd.DataFrame([row for row in rows if row["cell"] == cell])
        base = alt.Chart(data).encode(x=alt.X("run:T", title=None))
        line = base.mark_line(point=True).encode(
            y=alt.Y("value:Q", title=None, scale=alt.Scale(type="log")),
            color=alt.Color("implementation:N", title=None),
            detail="point:N",
        )
        if data["change"].notna().any():
            line += base.mark_rule(strokeDash=[3, 3]).transform_filter("datum.change != null")
        found.append((cell, _text(line.properties(width="container", height=220))))
    return found


def _attention(alt: Any, samples: Sequence[Sample]) -> list[Chart]:
    data = frame(samples)
    lengths = data.groupby(["implementation", "dtype", "batch", "heads"])["tokens"].transform("nunique")
    data = data[lengths > 1]
    if data.empty or data["implementation"].isin(BARS).all():
        return []
    found = [
        ("Share of the memory rate, by block size and length", _text(charts.heat_map(alt, data))),
        (
            "Rate at which keys and values are read, beside the memory's (roofline)",
            _text(charts.curves(alt, data)),
        ),
    ]
    rows = [
        {
            "implementation": s.implementation,
            "dtype": s.parameters["dtype"],
            "block": s.parameters["block_size"],
            "tokens": s.parameters["tokens"],
            "times": 1 / s.counters["ratio"],
        }
        for s in samples
        if s.counters.get("ratio") and s.implementation not in BARS
    ]
    if rows:
        ratio = (
            alt.Chart(pd.DataFrame(rows))
            .mark_line(point=True)
            .encode(
                x=alt.X("tokens:Q", title="sequence length, tokens", scale=alt.Scale(type="log", base=2)),
                y=alt.Y("times:Q", title="times as fast as SDPA"),
                color=alt.Color("implementation:N", title=None),
                strokeDash=alt.StrokeDash("block:N", title="block size"),
            )
            .properties(width=220, height=180)
            .facet(column=alt.Column("dtype:N", title=None))
        )
        found.append(("Ratio to the bar: SDPA on contiguous keys and values", _text(ratio)))
    return found


def _curve(alt: Any, samples: Sequence[Sample]) -> list[Chart]:
    """Median over the parameter that takes the most values; a line an implementation and rest."""
    axes = _axes(samples)
    if not axes or len(samples) < 2:
        return []
    names = list(dict.fromkeys(s.implementation for s in sorted(samples, key=lambda s: s.median)))[:MOST]
    rest = [name for name in _varying(samples) if name != axes[0]]
    rows = [
        {
            "implementation": s.implementation,
            axes[0]: s.parameters[axes[0]],
            "rest": ", ".join(f"{name} {s.parameters.get(name)}" for name in rest) or "all",
            "median": s.median,
            "low": s.low,
            "high": s.high,
        }
        for s in samples
        if s.implementation in names
    ]
    data = pd.DataFrame(rows)
    unit = samples[0].unit
    positive = bool((data["median"] > 0).all())
    base = alt.Chart(data).encode(
        x=alt.X(f"{axes[0]}:Q", title=axes[0].replace("_", " "), scale=alt.Scale(type="log", base=2)),
        color=alt.Color("implementation:N", title=None),
    )
    scale = alt.Scale(type="log") if positive else alt.Scale()
    dash = {} if not rest else {"strokeDash": alt.StrokeDash("rest:N", title=None)}
    line = base.mark_line(point=True).encode(y=alt.Y("median:Q", title=unit, scale=scale), **dash)
    band = base.mark_rule().encode(y=alt.Y("low:Q", title=unit), y2="high:Q")
    title = f"{unit} by {axes[0].replace('_', ' ')}"
    return [(title, _text((band + line).properties(width="container", height=280)))]


def _hits(alt: Any, samples: Sequence[Sample]) -> str:
    rows = [
        {
            "where": f"{s.implementation}, {s.parameters.get('capacity_tokens', 0):,}",
            "what": what,
            "rate": s.counters[what],
        }
        for s in samples
        for what in ("hit_rate", "ceiling")
        if what in s.counters
    ]
    chart = (
        alt.Chart(pd.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X("rate:Q", title="share of prompt blocks", axis=alt.Axis(format="%")),
            y=alt.Y("where:N", title=None),
            yOffset="what:N",
            color=alt.Color("what:N", title=None),
        )
        .properties(width="container", height=30 * len({row["where"] for row in rows}))
    )
    return _text(chart)


def _varying(samples: Sequence[Sample]) -> list[str]:
    names = dict.fromkeys(name for s in samples for name in s.parameters)
    return [n for n in names if len({str(s.parameters.get(n)) for s in samples}) > 1]


def _axes(samples: Sequence[Sample]) -> list[str]:
    """Numeric parameters with more than one value, the one with the most values first."""

    def values(name: str) -> set[Any]:
        return {s.parameters.get(name) for s in samples}

    numeric = [
        n
        for n in _varying(samples)
        if all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in values(n))
    ]
    return sorted(numeric, key=lambda n: -len(values(n)))


def _text(chart: Any) -> str:
    return json.dumps(chart.to_dict(), separators=(",", ":"))

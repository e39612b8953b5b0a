"""Samples as tables: one flat CSV, Markdown by cell, and a short one for terminal and summary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.bench import brief, upright
from kvproof.bench.brief import number
from kvproof.records import Header, Sample
from kvproof.report import attention, charts, patience, ranks


def _parameters(s: Sample) -> str:
    def text(value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:,}" if isinstance(value, int) else str(value)

    return ", ".join(f"{k}={text(v)}" for k, v in s.parameters.items())


def frame(samples: Sequence[Sample]) -> pd.DataFrame:
    """One row a sample; parameters as text, counters as columns of their own name."""
    rows: list[dict[str, Any]] = []
    for s in samples:
        row = s.model_dump(exclude={"kind", "counters", "parameters", "cals"})
        measured = s.rounds > 0
        if not measured:
            row |= dict.fromkeys(("median", "low", "high"), float("nan"))
        row["processes"] = len(s.processes) or 1
        rows.append(row | {"parameters": _parameters(s)} | s.counters)
    return pd.DataFrame(rows)


def markdown(header: Header, samples: Sequence[Sample], differences: Sequence[str]) -> str:
    """The summary: environment, a table a cell, and what the exact counts say."""
    e = header.environment
    lines = [
        "# Benchmark",
        "",
        f"Implementations: {header.implementation}. Seed {header.seed}, started {header.started}.",
        f"{e.cpu}, {e.cores} cores, {e.memory_gib} GiB, {f'{e.gpu}, ' if e.gpu else ''}Python {e.python}, "
        + ", ".join(f"{k} {v}" for k, v in e.packages.items())
        + f", kvproof {e.kvproof}{f' at {e.commit[:12]}' if e.commit else ''}"
        + f"{' (changed since)' * bool(e.dirty)}. "
        + f"A copy of memory moves {e.copy_gbps or 'an unknown number of'} GB/s"
        + (f"; {said}." if (said := e.busy()) else "."),
        "",
        "Medians with quartiles; `per cal` is the time divided by one turn of a fixed Python loop timed",
        "around the cell, which compares between machines; `ratio` is to the first implementation, with",
        "a 95 % bootstrap interval over the rounds of its processes. A row without a number says why.",
        "Blocks, entries, hits, copies and the like of timed cells are counted in one round, which is not",
        "timed and has the same input in every run: they are exact.",
        *([f"{said.capitalize()}."] if (said := brief.floors(samples)) else []),
        *_summary(samples),
    ]
    if header.absent:
        lines += ["", "## Not measured: PRECONDITION", ""]
        lines += [f"- {name}: {why}" for name, why in header.absent.items()]
    data = frame(samples)
    for cell in data["cell"].unique() if len(data) else []:
        part = data[data["cell"] == cell].dropna(axis="columns", how="all")
        here = [s for s in samples if s.cell == cell]
        lines += ["", f"## {cell}"]
        if cell.startswith(attention.CELL):
            table, same = attention.table(here, interval=True)
            lines += ["", f"In all rows: {same}."] if same else []
        else:
            own = upright.table if cell == SERVED else ranks.table if cell in ranks.CELLS else None
            table = own(here) if own else _cell(part)
        lines += ["", table.to_markdown(index=False, disable_numparse=True)]
        if cell == SERVED:
            lines += ["", upright.caption(here)]
        if cell in ranks.CELLS:
            lines += ["", ranks.caption(here)]
        if cell in NOTES:
            lines += ["", NOTES[cell]]
    if differences:
        lines += ["", "## Findings", "", *[f"- {d}" for d in differences]]
    return "\n".join(lines) + "\n"


SERVED = "scheduler_replay"

NOTES = {
    "attention": attention.NOTE,
    "evict": "Every block of the pool holds cached content, and prompts arrive that were never seen. Each is "
    "looked up in vain, takes its blocks by eviction, is published and freed; the time of these three calls "
    "is divided by its blocks. So prompts of 16 blocks show what the calls cost, and prompts of 512 what a "
    "block costs.",
    "memory": "A pool that was never used. `median` is metadata, counted by tracemalloc in blocks of 16 "
    "tokens; `token bytes block` is what is kept of the tokens, told apart by a second pool of as many "
    "blocks of 32 tokens. Memory asked for and not touched yet is counted in both, and is not resident.",
    "replay": "Hit rate = prompt tokens in hit full blocks / prompt tokens of the trace; ceiling = the same "
    "for an infinite cache. An eviction is seen when a block that held a committed full block is handed out "
    "for something else; hits + evictions + resident = blocks asked. `exact` is a plain LRU, a sequence's "
    "tail before its head.",
}


def _summary(samples: Sequence[Sample]) -> list[str]:
    """The short table; empty if no telling point was run."""
    names, found = brief.rows(samples)
    if not found:
        return []
    data = pd.DataFrame([(r.what, r.unit, *r.cells) for r in found], columns=["", "unit", *names])
    table = data.to_markdown(index=False, disable_numparse=True)
    return ["", "## Summary", "", table, "", f"Cells: {brief.CAPTION}."]


def _cell(part: pd.DataFrame) -> pd.DataFrame:
    out = pd.DataFrame({"parameters": part["parameters"], "implementation": part["implementation"]})
    out["unit"] = part["unit"]
    for name in ("median", "low", "high", "per_cal"):
        if name in part:
            out[name.replace("_", " ")] = part[name].map(number)
    if "ratio" in part:
        out["ratio"] = [
            "" if r != r else f"{r:.2f} ({a:.2f}-{b:.2f})"
            for r, a, b in zip(part["ratio"], part["ratio_low"], part["ratio_high"], strict=True)
        ]
    known = {"median", "low", "high", "per_cal", "ratio", "ratio_low", "ratio_high", "cal", "rounds"}
    known |= {"processes", "floor"}
    out["rounds"] = part["rounds"]
    if "floor" in part:
        out["processes"] = part["processes"]
        out["floor"] = part["floor"].map(lambda x: "" if x != x else f"{x:.1%}")
    for name in part.columns:
        if name not in known and pd.api.types.is_numeric_dtype(part[name]):
            fraction = part[name].abs().max() <= 1
            out[name.replace("_", " ")] = part[name].map(lambda x, f=fraction: _counter(x, f))
    if "note" in part and part["note"].astype(bool).any():
        out["note"] = part["note"]
    return out


def _counter(x: float, fraction: bool) -> str:
    if x != x:
        return ""
    return f"{x:.4f}" if fraction and x not in (0, 1) else f"{x:,.0f}" if x == int(x) else number(x)


def terminal(console: Console, samples: Sequence[Sample]) -> None:
    """The short tables: telling points of managers and schedulers, ranks, and all of attention."""
    names, found = brief.rows(samples)
    if found:
        table = Table("", "unit", *names, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for row in found:
            table.add_row(*map(escape, (row.what, row.unit, *row.cells)))
        console.print(table)
        if more := patience.more_time([s for s in samples if not s.cell.startswith(attention.CELL)]):
            console.print(more, markup=False, highlight=False)
        console.print(brief.CAPTION, markup=False, highlight=False)
    ranks.show(console, samples)
    attention.show(console, samples)
    if said := brief.floors(samples):
        console.print(said, markup=False, highlight=False)


def write(
    folder: Path,
    header: Header,
    samples: Sequence[Sample],
    differences: Sequence[str],
    series: Sequence[dict[str, Any]],
) -> Path:
    """Write bench.csv and bench.md, whose path it returns; series and charts where there are points."""
    frame(samples).to_csv(folder / "bench.csv", index=False)
    if series:
        pd.DataFrame(series).to_csv(folder / "scheduler_series.csv", index=False, float_format="%.6g")
    path = folder / "bench.md"
    pictures = [f"![{p.stem}]({p.name})" for p in charts.draw(samples, folder) if p.suffix == ".svg"]
    text = markdown(header, samples, differences) + "".join(f"\n{line}\n" for line in pictures)
    path.write_text(text, encoding="utf-8")
    return path

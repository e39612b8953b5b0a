"""Attention samples as a table: a row a point, a column an implementation, the contiguous bars beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.records import Sample
from kvproof.report import patience

CELL = "attention"
"""How the names of these cells begin."""
BARS = ("SDPA", "SDPA folded")
BLOCKS = ("block_size", "topology")
POINT = ("dtype", "tokens", "batch", "heads", "head_dim", *BLOCKS)
PIPE_WIDTH = 140
COLUMNS = ("numbers", "tokens", "batch", "heads", "dim", "block", "order")

CAPTION = (
    "time of a step; share of the memory rate measured in the same rounds; x of SDPA's time on "
    "contiguous keys and values"
)
NOTE = """Rounds of all columns of a group are interleaved. A time is of one decode step for the whole batch,
inputs cold: they are used in turn until the last-level cache is passed twice (on a GPU five times). The share
is of the rate at which memory was read beside it (on a GPU copied): bytes of keys, values, queries, outputs
and table / time / that rate. `SDPA` is torch's scaled_dot_product_attention on contiguous keys and values as
one calls it, with enable_gqa; `SDPA folded` is the same with the query heads of a KV head as rows of one
query, which reads every key once: on CPUs it is many times faster, above all in 16 bits, so look at both.
The interval is a 95 % bootstrap over the processes, of one process over its rounds; ± is how far apart the
first kernel and itself were measured there. Four rows and heads of every output are compared with float64,
and all of an output in a round of each process that nobody can foresee; a time under 0.8 of the floor,
bytes / fastest rate of the run, is INVALID. On a GPU a time is the device's, by events on the caller's
stream; clocks are read in every round, rounds under a throttle are thrown out (their share is in the cell),
rounds whose clocks drift are void, and a time that is that of a warm L2 is INVALID."""


def chosen(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of attention."""
    return [s for s in samples if s.cell.startswith(CELL)]


def table(samples: Sequence[Sample], interval: bool) -> tuple[pd.DataFrame, str]:
    """The samples as a table, and what is the same in all of its rows.

    With `interval` each ratio has its own, and the ratio to the folded bar behind it.
    """
    names = list(dict.fromkeys(s.implementation for s in samples))
    names = [n for n in names if n not in BARS] + [n for n in BARS if n in names]
    bars = {(_common(s), s.implementation): s for s in samples if s.implementation in BARS}
    points: dict[tuple[Any, ...], dict[str, Sample]] = {}
    for s in samples:
        if s.implementation not in BARS:
            points.setdefault(tuple(s.parameters[p] for p in POINT), {})[s.implementation] = s
    order = list(dict.fromkeys(point[: -len(BLOCKS)] for point in points))
    rows = []
    for point, found in sorted(points.items(), key=lambda p: (order.index(p[0][: -len(BLOCKS)]), p[0][-2])):
        common = _common(next(iter(found.values())))
        cells = [_text(found.get(n) or bars.get((common, n)), interval) for n in names]
        rows.append([*(f"{v:,}" if isinstance(v, int) else str(v) for v in point), *cells])
    data = pd.DataFrame(rows, columns=[*COLUMNS, *names])
    same = [c for c in COLUMNS if len(data) > 1 and data[c].nunique() == 1]
    said = ", ".join(f"{c} {data[c].iloc[0]}" for c in same)
    return data.drop(columns=same), said


def _common(s: Sample) -> tuple[tuple[str, Any], ...]:
    return tuple((k, s.parameters[k]) for k in POINT if k not in BLOCKS)


def _text(s: Sample | None, interval: bool) -> str:
    if s is None:
        return ""
    if not s.rounds:
        kind, _, why = s.note.partition(": ")
        return s.note if interval else "left out" if why.startswith("left out") else kind
    c = s.counters
    text = f"{duration(s.median)}, {c['roofline']:.0%}"
    if "ratio" in c:
        text += f", {c['ratio']:.2g}x"
        text += f" ({c['ratio_low']:.2g}-{c['ratio_high']:.2g})" if interval else ""
    text += f" ±{s.floor:.1%}" if s.floor is not None else ""
    if c.get("discarded"):
        text += f", {c['discarded']:.0%} thrown out"
    if interval and "ratio_folded" in c and s.implementation not in BARS:
        text += f", folded {c['ratio_folded']:.2g}x"
        text += f" ({c['ratio_folded_low']:.2g}-{c['ratio_folded_high']:.2g})"
    return text


def line(s: Sample) -> str:
    """One sample as it comes, for a run that is watched."""
    p = s.parameters
    step = f"{p['dtype']} {p['batch']} x {p['tokens']:,}, {p['heads']} heads of {p['head_dim']}"
    return f"{step}, block {p['block_size']} {p['topology']}: {s.implementation} {_text(s, True)}"


def show(console: Console, samples: Sequence[Sample]) -> None:
    """The table of all attention samples on the terminal; nothing where there are none."""
    steps = chosen(samples)
    if not steps:
        return
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = max(console.width, PIPE_WIDTH)
    data, same = table(steps, interval=False)
    shown = Table(*map(escape, data.columns), box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for row in data.to_numpy().tolist():
        shown.add_row(*map(escape, row))
    console.print(shown)
    if more := patience.more_time(steps):
        console.print(more, markup=False, highlight=False)
    console.print(CAPTION + (f"; in all rows {same}" if same else ""), markup=False, highlight=False)


def duration(us: float) -> str:
    """Microseconds in the unit that reads best."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def frame(samples: Sequence[Sample]) -> pd.DataFrame:
    """The measured samples, a row each, for charts: parameters, and the share and rate as numbers."""
    rows = [
        {
            "implementation": s.implementation,
            "cell": s.cell,
            **s.parameters,
            "us": s.median,
            "share": s.counters["roofline"],
            "gbps": s.counters["gbps"],
            "memory_gbps": s.counters["memory_gbps"],
        }
        for s in chosen(samples)
        if s.rounds
    ]
    return pd.DataFrame(rows)

"""Charts of attention samples: block size x length as a heat map, and curves over the length.

They need altair and vl-convert, which the extra `report` installs; without them there are none.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvproof.records import Sample
from kvproof.report.attention import BARS, frame

NEEDS = ("altair", "vl_convert")
CURVE_BLOCK = 16
"""Block size of the curves, or the nearest there is."""
FORMATS = ("svg", "png")


def missing() -> list[str]:
    """Packages without which there are no charts."""
    return [name for name in NEEDS if importlib.util.find_spec(name) is None]


def draw(samples: Sequence[Sample], folder: Path) -> list[Path]:
    """Write attention-heat-map and attention-curves as SVG and PNG; returns the files.

    None are written without samples of two lengths, and none if `missing` names a package.
    """
    data = frame(samples)
    if missing() or data.empty:
        return []
    data = data[data["cell"] == "attention"]
    lengths = data.groupby(["implementation", "dtype", "batch", "heads"])["tokens"].transform("nunique")
    data = data[lengths > 1]
    if data["implementation"].isin(BARS).all():
        return []
    alt: Any = importlib.import_module("altair")
    alt.data_transformers.disable_max_rows()
    written = []
    for name, chart in (("heat-map", heat_map(alt, data)), ("curves", curves(alt, data))):
        for kind in FORMATS:
            path = folder / f"attention-{name}.{kind}"
            chart.save(str(path), **({"scale_factor": 2} if kind == "png" else {}))
            written.append(path)
    return written


def heat_map(alt: Any, data: pd.DataFrame) -> Any:
    """Share of the memory rate by block size and length; a panel an implementation and format."""
    paged = data[~data["implementation"].isin(BARS)].copy()
    paged["percent"] = (paged["share"] * 100).round().astype(int)
    axes = alt.Chart(paged).encode(
        x=alt.X("tokens:O", title="sequence length, tokens"),
        y=alt.Y("block_size:O", title="block size", sort="descending"),
    )
    scale = alt.Scale(scheme="viridis", domain=[0, 100])
    squares = axes.mark_rect().encode(color=alt.Color("percent:Q", title="% of memory rate", scale=scale))
    numbers = axes.mark_text(fontSize=10).encode(
        text="percent:Q",
        color=alt.condition("datum.percent > 55", alt.value("black"), alt.value("white")),
    )
    sized = (squares + numbers).properties(width=alt.Step(40), height=alt.Step(28))
    who = alt.Header(labelAngle=0, labelAlign="left", labelOrient="top")
    return sized.facet(
        row=alt.Row("implementation:N", title=None, header=who), column=alt.Column("dtype:N", title=None)
    )


def curves(alt: Any, data: pd.DataFrame) -> Any:
    """Bytes a second over the length, contiguous bars beside and the memory rate dashed; a panel a format."""
    paged = data[~data["implementation"].isin(BARS)]
    sizes = sorted(paged["block_size"].unique(), key=lambda size: abs(int(size) - CURVE_BLOCK))
    lines = pd.concat([paged[paged["block_size"] == sizes[0]], data[data["implementation"].isin(BARS)]])
    base = alt.Chart(lines).encode(
        x=alt.X("tokens:Q", title="sequence length, tokens", scale=alt.Scale(type="log", base=2)),
    )
    shown = base.mark_line(point=True).encode(
        y=alt.Y("gbps:Q", title=f"GB/s, blocks of {sizes[0]}"),
        color=alt.Color("implementation:N", title=None),
    )
    memory = base.mark_line(strokeDash=[4, 4], color="gray").encode(y="mean(memory_gbps):Q")
    return (shown + memory).facet(column=alt.Column("dtype:N", title=None))

"""The benchmark matrix as data: `specs/scenarios/*.toml` to points to measure."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof.bench.cells import CELLS

FILES = {
    "manager": "manager.toml",
    "scheduler": "scheduler.toml",
    "ranks": "ranks.toml",
    "kernel": "attention.toml",
}
"""The matrix of each profile."""
APART = ("memory", "replay", "waste", "scheduler_replay")
"""Cells that are not timed round by round: a process of their own, or a trace."""
RANKS = ("ranks_sync", "ranks_step", "ranks_scale", "ranks_pressure")
"""Cells of ranks: points that share a set-up are measured together."""
STEPPED = ("ranks_step", "ranks_scale")
"""Those of one object, whose counters are exact."""
ATTENTION = ("attention", "attention_topology", "attention_shape")
"""Cells of kernels: their points are measured in groups."""


class BadMatrix(ValueError):
    """A matrix file, or the choice of cells, names something that does not exist."""


@dataclass(frozen=True)
class Point:
    """One cell with one combination of its parameters; settings are the same in all its points."""

    cell: str
    parameters: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.cell}({', '.join(f'{k}={v}' for k, v in self.parameters.items())})"


def load(
    folder: Path,
    cells: Sequence[str] | None,
    quick: bool,
    profiles: Sequence[str] = tuple(FILES),
    device: bool = False,
) -> list[Point]:
    """Points of the chosen cells (None: all) of these profiles, in the order of the files.

    Args:
        device: a quick run is one on a GPU.

    Raises:
        BadMatrix: a cell is unknown, or its entry has other keys than text, parameters, quick, device,
            settings.
    """
    known = [*CELLS, *APART, *RANKS, *ATTENTION]
    matrix: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in (folder / "scenarios" / FILES[name] for name in profiles):
        if path.is_file():
            entries = tomllib.loads(path.read_text(encoding="utf-8"))
            matrix |= {name: (path.name, entry) for name, entry in entries.items()}
    for name in [*matrix, *(cells or ())]:
        if name not in known:
            raise BadMatrix(f"cell {name!r}: allowed are {', '.join(known)}")
    points = []
    for name, (file, entry) in matrix.items():
        extra = set(entry) - {"text", "parameters", "quick", "device", "settings"}
        short = entry.get("device" if device and "device" in entry else "quick", {})
        parameters = entry.get("parameters", {}) | (short if quick else {})
        if extra or set(parameters) != set(entry.get("parameters", {})):
            raise BadMatrix(
                f"{file}: [{name}] allows text, parameters, quick and device with some of these, settings"
            )
        if cells is None or name in cells:
            points += [
                Point(name, dict(zip(parameters, values, strict=True)), entry.get("settings", {}))
                for values in itertools.product(*parameters.values())
            ]
    return points


def part(points: Sequence[Point], shard: tuple[int, int] | None) -> list[Point]:
    """Part i of n: every n-th workload, from the i-th on; all of them for None.

    What is measured together stays together: all points of a cell, as a growth needs them, and of
    attention those that differ in block size and topology only, as they share their bar.
    """
    if shard is None:
        return list(points)

    def workload(point: Point) -> tuple[Any, ...]:
        rest = {k: v for k, v in point.parameters.items() if k not in ("block_size", "topology")}
        return (point.cell, *rest.values()) if point.cell in ATTENTION else (point.cell,)

    index, (i, n) = {w: k for k, w in enumerate(dict.fromkeys(map(workload, points)))}, shard
    return [p for p in points if index[workload(p)] % n == i - 1]

"""The benchmark matrix as data: `specs/scenarios/manager.toml` to points to measure."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof.bench.cells import CELLS

APART = ("memory", "replay", "waste")
"""Cells that are not timed round by round: a process of their own, or a trace."""


class BadMatrix(ValueError):
    """The matrix file, or the choice of cells, names something that does not exist."""


@dataclass(frozen=True)
class Point:
    """One cell with one combination of its parameters."""

    cell: str
    parameters: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.cell}({', '.join(f'{k}={v}' for k, v in self.parameters.items())})"


def load(folder: Path, cells: Sequence[str] | None, quick: bool) -> list[Point]:
    """Points of the chosen cells (None: all), in the order of the file.

    Raises:
        BadMatrix: a cell is unknown, or its entry has other keys than text, parameters, quick.
    """
    path = folder / "scenarios" / "manager.toml"
    matrix = tomllib.loads(path.read_text(encoding="utf-8"))
    known = [*CELLS, *APART]
    for name in [*matrix, *(cells or ())]:
        if name not in known:
            raise BadMatrix(f"cell {name!r}: allowed are {', '.join(known)}")
    points = []
    for name, entry in matrix.items():
        extra = set(entry) - {"text", "parameters", "quick"}
        parameters = entry.get("parameters", {}) | (entry.get("quick", {}) if quick else {})
        if extra or set(parameters) != set(entry.get("parameters", {})):
            raise BadMatrix(f"{path.name}: [{name}] allows text, parameters, and quick with some of these")
        if cells is None or name in cells:
            points += [
                Point(name, dict(zip(parameters, values, strict=True)))
                for values in itertools.product(*parameters.values())
            ]
    return points

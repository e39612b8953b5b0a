"""The committed run of a machine of the same kind, to compare a new run with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvproof.report.results import ResultFile, ResultsError, read


def fitting(folder: Path, run: Sequence[ResultFile]) -> list[ResultFile]:
    """The baseline in `folder` of the machine that `run` was made on, cut down to what `run` is about.

    A machine is told by its CPU and the number of cores, and its GPU where a run of the baseline names one.
    Of the baseline is kept what the run has too: the same implementations and profiles, and of benchmarks
    the same cells, as a run of a part has lost nothing.

    Args:
        folder: holds a folder of result files a machine.

    Raises:
        ResultsError: the run is of several machines, there is no baseline, or none fits.
    """
    machines = sorted({_machine(f) for f in run})
    if len(machines) != 1:
        raise ResultsError(f"a run of one machine is compared with a baseline, not of: {_list(machines)}")
    known: dict[str, list[ResultFile]] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        known.setdefault(path.parent.name, []).append(read(path))
    if not known:
        raise ResultsError(f"no baseline: {folder} has no folder with result files")
    found = [f for files in known.values() for f in files if _machine(f) == machines[0]]
    if not found:
        there = "; ".join(f"{name}: {_list({_machine(f) for f in files})}" for name, files in known.items())
        raise ResultsError(f"no baseline of {machines[0]} in {folder}; there are {there}")
    kept = [cut for f in found if (cut := _cut(f, run)) is not None]
    if not kept:
        held = ", ".join(sorted({f"{f.header.what} of {f.header.implementation}" for f in found}))
        raise ResultsError(f"the baseline of {machines[0]} holds nothing of this run, but {held}")
    return kept


def _machine(file: ResultFile) -> str:
    at = file.header.environment
    return f"{at.cpu}, {at.cores} cores" + (f", {at.gpu}" if at.gpu else "")


def _list(machines: Sequence[str] | set[str]) -> str:
    return " and ".join(sorted(machines)) or "nothing"


def _cut(old: ResultFile, run: Sequence[ResultFile]) -> ResultFile | None:
    """What the run is about too; None if that is nothing."""
    same = [f for f in run if f.header.what == old.header.what]
    if old.header.what == "conformance":
        key = old.header.implementation, old.header.profile
        return old if key in {(f.header.implementation, f.header.profile) for f in same} else None
    asked = {(s.implementation, s.cell) for f in same for s in f.samples}
    samples = tuple(s for s in old.samples if (s.implementation, s.cell) in asked)
    return replace(old, samples=samples) if samples else None

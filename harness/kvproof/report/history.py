"""A history that grows by a line for each implementation of a run, and the lasting changes in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kvproof.derived import Past
from kvproof.records import Sample
from kvproof.report.results import ResultFile, ResultsError
from kvproof.report.summary import summarize
from kvproof.stats import Step, steps

NAME = "history.jsonl"
"""The name of the file, by which it is told from result files."""


@dataclass(frozen=True)
class Change:
    """A lasting change of one point."""

    implementation: str
    point: str
    step: Step
    at: Past
    """The first run after it."""

    def __str__(self) -> str:
        ratio = self.step.after / self.step.before
        where = f"{self.at.started}" + (f", commit {self.at.commit[:12]}" if self.at.commit else "")
        return f"{self.implementation} {self.point}: x {ratio:.2f} since {where}"


def lines(file: ResultFile) -> Iterator[Past]:
    """What a result file adds to a history."""
    h = file.header
    about = {"started": h.started, "commit": h.environment.commit, "cpu": h.environment.cpu, "what": h.what}
    if h.what == "conformance":
        summary = summarize(file)
        counts: dict[str, int] = {}
        for verdict in summary.verdicts.values():
            counts[str(verdict)] = counts.get(str(verdict), 0) + 1
        failing = tuple(f.requirement.id for f in summary.failures if not f.advisory)
        yield Past.model_validate(
            about
            | {"implementation": h.implementation, "profile": h.profile}
            | {"verdicts": counts, "failing": failing}
        )
        return
    points: dict[str, dict[str, float]] = {}
    for s in file.samples:
        value = _value(s)
        if value is not None:
            where = ", ".join(f"{k} {v}" for k, v in s.parameters.items())
            points.setdefault(s.implementation, {})[f"{s.cell}: {where}"] = value
    for name, found in points.items():
        yield Past.model_validate(about | {"implementation": name, "profile": h.profile, "points": found})


def append(path: Path, files: Sequence[ResultFile]) -> int:
    """Add what the history does not hold yet; returns how many lines were added.

    Raises:
        ResultsError: the history cannot be read.
    """
    held = {(p.started, p.what, p.implementation, p.profile) for p in read(path)} if path.is_file() else set()
    new = [
        past
        for file in files
        if file.footer.complete
        for past in lines(file)
        if (past.started, past.what, past.implementation, past.profile) not in held
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", newline="\n") as stream:
        for past in new:
            stream.write(past.model_dump_json() + "\n")
    return len(new)


def read(path: Path) -> list[Past]:
    """The lines of a history, oldest first.

    Raises:
        ResultsError: a line is not one of a history; it is named.
    """
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(Past.model_validate_json(text))
        except ValidationError as error:
            raise ResultsError(f"{path.name}:{number}: {error.errors()[0]['msg']}") from None
    return sorted(found, key=lambda p: p.started)


def series(past: Sequence[Past]) -> dict[tuple[str, str], list[tuple[Past, float]]]:
    """(implementation, point) -> its values over time, of the machine that ran last.

    Values of different machines are not one series.
    """
    measured = [p for p in past if p.what == "bench"]
    found: dict[tuple[str, str], list[tuple[Past, float]]] = {}
    for p in measured:
        if p.cpu == measured[-1].cpu:
            for point, value in p.points.items():
                found.setdefault((p.implementation, point), []).append((p, value))
    return found


def changes(past: Sequence[Past]) -> list[Change]:
    """Every lasting change, by `stats.steps`; the newest first."""
    found = [
        Change(name, point, step, values[step.index][0])
        for (name, point), values in series(past).items()
        for step in steps([v for _, v in values])
    ]
    return sorted(found, key=lambda c: c.at.started, reverse=True)


def _value(s: Sample) -> float | None:
    """What can be compared between runs: turns of the calibration loop, else the ratio to the control."""
    if not s.rounds:
        return None
    value = s.per_cal if s.per_cal is not None else s.counters.get("ratio", s.median)
    return value if value > 0 else None

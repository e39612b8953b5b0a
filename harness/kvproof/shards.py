"""Puts the parts of a run together: nothing is lost, and nothing counted twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvproof import ledger
from kvproof.conformance.citing import DRAWN, case_names
from kvproof.conformance.run import ledger_path
from kvproof.records import Footer, Header, Judged, Result, Sample
from kvproof.report.results import ResultFile, ResultsError, ResultWriter, read, tally
from kvproof.subjects import SubjectError, find

SAME = ("spec", "implementation", "version", "profile", "seed", "capabilities", "requirements")
"""Fields of the header that all parts of a run share, besides kvproof's version and the commit."""


SHARD = r" --shard[ =]\d+/\d+"


@dataclass(frozen=True)
class Whole:
    """A run whose parts have been put together."""

    name: str
    header: Header
    cases: tuple[Judged, ...]
    results: tuple[Result, ...]
    samples: tuple[Sample, ...]
    footer: Footer

    def write(self, folder: Path) -> Path:
        """Write it as a result file."""
        path = folder / self.name
        with ResultWriter(path, self.header) as writer:
            records: list[Judged | Result | Sample] = [*self.cases, *self.results, *self.samples]
            for record in records:
                writer.write(record)
            writer.close(self.footer)
        return path


def merge(paths: Sequence[Path], folder: Path) -> tuple[list[Path], int]:
    """Put files of parts together: (the files written into `folder`, exit status of the whole run).

    Raises:
        ResultsError: as `put_together`.
    """
    whole = [settled(one) for one in put_together([read(path) for path in paths])]
    folder.mkdir(parents=True, exist_ok=True)
    statuses = {one.footer.exit_status for one in whole}
    return [one.write(folder) for one in whole], next((s for s in (1, 2, 3) if s in statuses), 0)


def put_together(files: Sequence[ResultFile]) -> list[Whole]:
    """The parts of each run as one.

    Raises:
        ResultsError: a file is no part, or a part is missing, given twice, of another run, or did not end.
    """
    runs: dict[tuple[str, str, str], list[ResultFile]] = {}
    for file in files:
        h = file.header
        if not h.shard:
            raise ResultsError(f"{file.path}: is no part of a run; merge wants files of runs with --shard")
        if not file.footer.complete:
            raise ResultsError(f"{file.path}: part {h.shard} did not end; run it again")
        runs.setdefault((h.what, h.implementation, h.profile), []).append(file)
    return [_one(parts) for parts in runs.values()]


def _one(parts: list[ResultFile]) -> Whole:
    parts.sort(key=lambda f: int(f.header.shard.split("/")[0]))
    first = parts[0].header
    who, count = first.implementation, int(first.shard.split("/")[1])
    for part in parts:
        h = part.header
        differs = [name for name in SAME if getattr(h, name) != getattr(first, name)]
        here, there = h.environment, first.environment
        differs += [name for name in ("kvproof", "commit") if getattr(here, name) != getattr(there, name)]
        if differs:
            raise ResultsError(f"{part.path}: {differs[0]} differs from that of {parts[0].path}: not one run")
        if int(h.shard.split("/")[1]) != count:
            raise ResultsError(f"{part.path}: part {h.shard} beside parts of {count}: not one run")
    given = Counter(part.header.shard for part in parts)
    missing = [f"{i}/{count}" for i in range(1, count + 1) if f"{i}/{count}" not in given]
    twice = [shard for shard, n in given.items() if n > 1]
    if missing or twice:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(twice)} more than once"
        raise ResultsError(f"{who}: the run {what}")
    results = tuple(r for part in parts for r in part.results)
    left_out: Counter[str] = Counter()
    for part in parts:
        left_out.update(part.footer.left_out)
    statuses = {part.footer.exit_status for part in parts}
    ran, failed, status = tally(results, first.requirements)
    if first.what == "bench":
        ran, failed = 0, sum(part.footer.failed for part in parts)
        status = 1 if 1 in statuses else 0 if 0 in statuses else 3
    return Whole(
        name=parts[0].path.name,
        header=first.model_copy(update={"shard": "", "command": re.sub(SHARD, "", first.command)}),
        cases=tuple(c for part in parts for c in part.cases),
        results=results,
        samples=tuple(s for part in parts for s in part.samples),
        footer=Footer(
            complete=True,
            cases=sum(part.footer.cases for part in parts),
            must_run=ran,
            failed=failed,
            exit_status=status,
            seconds=round(sum(part.footer.seconds for part in parts), 3),
            left_out=dict(left_out),
        ),
    )


def settled(whole: Whole) -> Whole:
    """The run with an XPASS for each entry of known.toml whose failure no part saw.

    An implementation that cannot be found here keeps its entries unchecked.
    """
    if whole.header.what != "conformance":
        return whole
    requirements = {r.id: r for r in whole.header.requirements}
    try:
        path = ledger_path(find(whole.header.implementation))
        known = ledger.load(path, requirements, case_names(), DRAWN)
    except (SubjectError, ledger.LedgerError):
        return whole
    stale = tuple(ledger.stale(whole.results, known))
    if not stale:
        return whole
    ran, failed, status = tally((*whole.results, *stale), whole.header.requirements)
    footer = whole.footer.model_copy(update={"must_run": ran, "failed": failed, "exit_status": status})
    return replace(whole, results=(*whole.results, *stale), footer=footer)

"""Result files -> what the pages show: implementations, requirements, benchmark cells."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from kvproof.derived import Past
from kvproof.records import SHORTEST, Requirement, Sample, Verdict
from kvproof.report import history
from kvproof.report.results import Incomplete, NoHeader, ResultFile, read
from kvproof.report.summary import APART, BAD, Failure, Summary, summarize

KILLS = "kill-matrix.md"
"""Beside or above the results: which planted faults die by which requirement."""


@dataclass(frozen=True)
class Judgement:
    """One implementation, judged: its newest complete conformance file."""

    slug: str
    summary: Summary

    @property
    def name(self) -> str:
        return self.summary.file.header.implementation

    @property
    def profile(self) -> str:
        return self.summary.file.header.profile

    @property
    def failed(self) -> bool:
        return any(not f.advisory for f in self.summary.failures)

    @cached_property
    def failures(self) -> dict[str, Failure]:
        """Requirement id -> what does not hold, or is known not to."""
        known = {f.requirement.id: f for f in self.summary.known}
        return known | {f.requirement.id: f for f in self.summary.failures}

    @cached_property
    def why(self) -> dict[str, str]:
        """Requirement id -> why nothing was learned about it."""
        return {n.requirement.id: n.why for n in self.summary.not_run}

    def area(self, area: str) -> tuple[str, str, str]:
        """(class, text, title) of the overview's cell; empty where the profile lacks the area."""
        counts = self.summary.areas.get(area)
        if not counts:
            return "", "", ""
        bad = sum(counts[v] for v in BAD)
        judged = sum(n for v, n in counts.items() if v not in (*APART, Verdict.UNSUPPORTED))
        title = ", ".join(f"{n} {v}" for v, n in sorted(counts.items()))
        must = any(f.requirement.area == area and not f.advisory for f in self.summary.failures)
        if bad:
            return ("fail" if must else "advice"), f"{bad} of {judged}", title
        if judged:
            known = counts[Verdict.XFAIL]
            return ("known", f"{known} of {judged}", title) if known else ("pass", f"{judged}", title)
        return "none", "–", title  # noqa: RUF001


@dataclass(frozen=True)
class Rule:
    """One requirement, with all that is known of it."""

    requirement: Requirement
    kills: tuple[str, ...]
    """Planted faults that die by it."""
    tests: tuple[tuple[str, str], ...]
    """(case, note) of the directed cases that aim at it."""
    random: int
    """Further cases without a note, such as random histories."""


@dataclass(frozen=True)
class Cell:
    """One workload of the benchmark: its samples by implementation."""

    name: str
    slug: str
    samples: tuple[Sample, ...]

    @property
    def implementations(self) -> list[str]:
        return list(dict.fromkeys(s.implementation for s in self.samples))

    @property
    def units(self) -> list[str]:
        return list(dict.fromkeys(s.unit for s in self.samples))


@dataclass(frozen=True)
class Site:
    """All that the pages show."""

    files: tuple[ResultFile, ...]
    """Oldest first."""
    judged: tuple[Judgement, ...]
    rules: dict[str, Rule]
    cells: tuple[Cell, ...]
    series: tuple[dict[str, Any], ...]
    """Points of trace replays over time."""
    skipped: tuple[str, ...]
    """Files that could not be used, and why."""
    past: tuple[Past, ...] = ()
    """The lines of the history, oldest first."""
    slugs: dict[str, str] = field(default_factory=dict)

    @property
    def profiles(self) -> list[str]:
        return list(dict.fromkeys(j.profile for j in self.judged))

    def of(self, profile: str) -> list[Judgement]:
        return [j for j in self.judged if j.profile == profile]

    def areas(self, profile: str) -> list[str]:
        """Areas of this profile of which somebody was judged: those in which one fails first, then those with
        a known failure, else in the order of the specification."""
        found = (r.requirement for r in self.rules.values() if r.requirement.profile == profile)
        areas = dict.fromkeys(r.area for r in found)
        seen = {a: {j.area(a)[0] for j in self.of(profile)} for a in areas}
        bad = ("fail", "advice", "known")
        rank = {a: next((n for n, kind in enumerate(bad) if kind in seen[a]), len(bad)) for a in areas}
        return sorted((a for a in areas if seen[a] - {"", "none"}), key=rank.__getitem__)


def gather(paths: Sequence[Path]) -> Site:
    """Read result files, and take the newest of each implementation; the folder's other files too.

    What cannot be read is named in `skipped`; a file that is no result file at all is passed over.
    """
    files, skipped = [], []
    past: list[Past] = []
    for path in paths:
        try:
            if path.name == history.NAME:
                past += history.read(path)
                continue
            file = read(path)
            if _is(file, "conformance"):
                summarize(file)
            files.append(file)
        except NoHeader:
            continue
        except (Incomplete, ValueError) as error:
            skipped.append(str(error))
    files.sort(key=lambda f: f.header.started)
    newest = {(f.header.implementation, f.header.profile): f for f in files if _is(f, "conformance")}
    slugs = _slugs(f"{name}-{profile}" for name, profile in newest)
    judged = [Judgement(slugs[f"{n}-{p}"], summarize(f)) for (n, p), f in newest.items()]
    judged.sort(key=lambda j: (_rank(j.profile), not j.failed, not j.failures, j.name))
    return Site(
        files=tuple(files),
        judged=tuple(judged),
        rules=_rules([j.summary.file for j in judged], _kills(paths)),
        cells=_cells([f for f in files if _is(f, "bench")]),
        series=tuple(_series({f.path.parent for f in files if _is(f, "bench")})),
        skipped=tuple(skipped),
        past=tuple(sorted(past, key=lambda p: p.started)),
        slugs={j.name: j.slug for j in reversed(judged)},
    )


def _is(file: ResultFile, what: str) -> bool:
    return file.header.what == what


def _rank(profile: str) -> int:
    order = ("manager", "scheduler", "ranks", "kernel")
    return order.index(profile) if profile in order else len(order)


LONGEST_SLUG = 100
"""Letters; any file system takes the names that are made of it."""


def _slugs(names: Iterable[str]) -> dict[str, str]:
    """Names of files: letters, digits and dashes; a number behind those that would be equal."""
    taken: Counter[str] = Counter()
    found = {}
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:LONGEST_SLUG] or "unnamed"
        taken[slug] += 1
        found[name] = slug if taken[slug] == 1 else f"{slug}-{taken[slug]}"
    return found


def _rules(files: Sequence[ResultFile], kills: dict[str, list[str]]) -> dict[str, Rule]:
    oldest_first = sorted(files, key=lambda f: f.header.started)
    requirements: dict[str, Requirement] = {}
    for r in (r for f in oldest_first for r in f.header.requirements):
        if r.id not in requirements or r.why.strip("-"):  # files of old have a dash for it
            requirements[r.id] = r
    tests: dict[str, dict[str, str]] = {key: {} for key in requirements}
    plain: dict[str, set[str]] = {key: set() for key in requirements}
    for case in (c for f in files for c in f.cases):
        for aim in case.aim:
            if aim in requirements and case.note:
                tests[aim][case.id.removesuffix(SHORTEST)] = case.note
            elif aim in requirements:
                plain[aim].add(case.id)
    return {
        key: Rule(r, tuple(kills.get(key, ())), tuple(sorted(tests[key].items())), len(plain[key]))
        for key, r in sorted(requirements.items(), key=lambda item: (_rank(item[1].profile), item[0]))
    }


def _kills(paths: Sequence[Path]) -> dict[str, list[str]]:
    """Requirement id -> planted faults, from the kill matrix nearest to the results."""
    folders = dict.fromkeys(parent for p in paths for parent in p.resolve().parents)
    table = next((folder / KILLS for folder in folders if (folder / KILLS).is_file()), None)
    found: dict[str, list[str]] = {}
    for line in table.read_text(encoding="utf-8").splitlines() if table else ():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 4 and re.fullmatch(r"[A-Z]+-\d{3}", cells[1]) and cells[4] == "yes":
            found.setdefault(f"KVP-{cells[1]}", []).append(f"{cells[0]}: {cells[2]}")
    return found


def _cells(files: Sequence[ResultFile]) -> tuple[Cell, ...]:
    """The newest sample of each point; workloads in the order in which they were measured."""
    points: dict[tuple[str, str, str], Sample] = {}
    for file in files:
        for s in file.samples:
            points[s.cell, s.implementation, json.dumps(s.parameters, sort_keys=True) + s.unit] = s
    names = list(dict.fromkeys(key[0] for key in points))
    slugs = _slugs(names)
    return tuple(Cell(n, slugs[n], tuple(s for k, s in points.items() if k[0] == n)) for n in names)


def _series(folders: Iterable[Path]) -> Iterable[dict[str, Any]]:
    found = [path for f in sorted(folders) if (path := f / "scheduler_series.csv").is_file()]
    return pd.read_csv(found[-1]).to_dict("records") if found else []  # type: ignore[return-value]

"""Result files in the forms of other tools: test reports, tables, badges, and trackers of benchmarks."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kvproof.records import Sample, Verdict
from kvproof.report.results import ResultFile
from kvproof.report.slim import again
from kvproof.report.summary import BAD, Summary, summarize

SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
GREEN, RED, GREY = "#2da44e", "#cf222e", "#6e7781"


COLUMNS = (
    dict.fromkeys(("what", "implementation", "profile", "name", "verdict", "unit"), "string")
    | dict.fromkeys(("median", "low", "high"), "float64")
    | {"rounds": "Int64"}
    | dict.fromkeys(("parameters", "counters", "note", "started", "commit"), "string")
    | dict.fromkeys(("cpu", "gpu", "kvproof", "python"), "string")
)
"""Of the table: the same in every export, also where one is empty, so that several can be put together."""


class NothingToExport(ValueError):
    """The files hold nothing of the kind that the form is for."""


def junit(files: Sequence[ResultFile]) -> str:
    """Verdicts as JUnit XML: a suite an implementation, a test case a requirement.

    A MUST that does not hold is a failure, an ERROR an error; a SHOULD that does not hold, and all about
    which nothing was learned, is skipped with the reason.
    """
    root = ET.Element("testsuites", name="kvproof")
    for summary in _summaries(files):
        header = summary.file.header
        suite = ET.SubElement(root, "testsuite", name=header.implementation, timestamp=header.started)
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        failed = {f.requirement.id: f for f in summary.failures}
        why = {n.requirement.id: n.why for n in summary.not_run}
        times = dict.fromkeys(summary.verdicts, 0.0)
        for result in summary.file.results:
            times[result.requirement] += result.milliseconds / 1000
        titles = {r.id: r.title for r in header.requirements}
        for key, verdict in summary.verdicts.items():
            name = f"{key} {titles[key]}"
            case = ET.SubElement(
                suite, "testcase", classname=f"{header.implementation}.{key.split('-')[1]}", name=name
            )
            case.set("time", f"{times[key]:.3f}")
            counts["tests"] += 1
            failure = failed.get(key)
            if failure is not None and not failure.advisory:
                kind = "error" if verdict is Verdict.ERROR else "failure"
                counts["errors" if kind == "error" else "failures"] += 1
                result = failure.result
                told = ET.SubElement(
                    case, kind, type=str(verdict), message=_plain(result.got or result.reason)
                )
                lines = [
                    f"expected {result.expected}",
                    f"got {result.got}",
                    *failure.history(),
                    result.replay or again(header, key),
                ]
                told.text = _plain("\n".join(line for line in lines if line))
            elif verdict is not Verdict.PASS:
                counts["skipped"] += 1
                reason = why.get(key) or (failure.result.got if failure else "") or str(verdict)
                ET.SubElement(case, "skipped", message=_plain(f"{verdict}: {reason}"))
        for name, count in counts.items():
            suite.set(name, str(count))
        suite.set("time", f"{summary.file.footer.seconds:.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def endpoint(files: Sequence[ResultFile]) -> str:
    """The JSON that a shields.io endpoint badge reads (shields.io/badges/endpoint-badge)."""
    message, colour = _state(_summaries(files))
    return json.dumps({"schemaVersion": 1, "label": "kvproof", "message": message, "color": colour}) + "\n"


def badge(files: Sequence[ResultFile]) -> str:
    """The same as a picture: SVG, without a service."""
    message, colour = _state(_summaries(files))
    left, right = 58, 12 + 7 * len(message)
    text = 'fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="kvproof: {message}"><title>kvproof: {message}</title>'
        f'<rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<text x="{left / 2}" y="14" {text}>kvproof</text>'
        f'<text x="{left + right / 2}" y="14" {text}>{message}</text></svg>\n'
    )


def frame(files: Sequence[ResultFile]) -> pd.DataFrame:
    """Every verdict and every sample as a row of one table, with where and when it was measured."""
    rows: list[dict[str, Any]] = []
    for file in files:
        h = file.header
        where: dict[str, Any] = {
            "started": h.started,
            "commit": h.environment.commit,
            "cpu": h.environment.cpu,
        }
        where |= {"gpu": h.environment.gpu, "kvproof": h.environment.kvproof, "python": h.environment.python}
        if h.what == "conformance":
            for key, verdict in summarize(file).verdicts.items():
                about = {"what": "verdict", "implementation": h.implementation, "profile": h.profile}
                rows.append(about | {"name": key, "verdict": str(verdict)} | where)
        for s in file.samples:
            about = {"what": "sample", "implementation": s.implementation, "profile": h.profile}
            values = {"unit": s.unit, "median": s.median, "low": s.low, "high": s.high, "rounds": s.rounds}
            texts = {"parameters": json.dumps(s.parameters), "counters": json.dumps(s.counters)}
            rows.append(about | {"name": s.cell} | values | texts | {"note": s.note} | where)
    return pd.DataFrame(rows, columns=[*COLUMNS]).astype(COLUMNS)


def github_action_benchmark(files: Sequence[ResultFile]) -> str:
    """Input of benchmark-action/github-action-benchmark, tool `customSmallerIsBetter` (its README)."""
    found = [
        {
            "name": name,
            "unit": s.unit,
            "value": s.median,
            "range": f"{s.low:.6g} to {s.high:.6g}",
            "extra": f"{s.rounds} rounds",
        }
        for name, s in _measured(files)
    ]
    return json.dumps(found, indent=1) + "\n"


def bencher(files: Sequence[ResultFile]) -> str:
    """Bencher Metric Format (bencher.dev/docs/reference/bencher-metric-format)."""
    found = {
        name: {_measure(s.unit): {"value": s.median, "lower_value": s.low, "upper_value": s.high}}
        for name, s in _measured(files)
    }
    return json.dumps(found, indent=1) + "\n"


def pytest_benchmark(files: Sequence[ResultFile]) -> str:
    """What `pytest-benchmark compare` reads; times only, in seconds.

    A sample keeps quartiles and a median: `mean` stands for the median, `min` and `max` for the quartiles.
    """
    benchmarks = []
    for name, s in _measured(files):
        scale = SECONDS.get(s.unit.split("/")[0])
        if scale is None:
            continue
        low, mid, high = (x * scale for x in (s.low, s.median, s.high))
        stats = {"min": low, "max": high, "mean": mid, "median": mid, "q1": low, "q3": high}
        stats |= {"iqr": high - low, "stddev": (high - low) / 1.349, "ld15iqr": low, "hd15iqr": high}
        stats |= {
            "ops": 1 / mid if mid else 0.0,
            "total": mid * s.rounds,
            "rounds": s.rounds,
            "iterations": 1,
        }
        stats |= {"iqr_outliers": 0, "stddev_outliers": 0}
        benchmarks.append(
            {
                "group": s.cell,
                "name": name,
                "fullname": name,
                "params": s.parameters,
                "param": None,
                "extra_info": {"unit": s.unit, **s.counters},
                "options": {},
                "stats": stats | {"outliers": "0;0"},
            }
        )
    if not benchmarks:
        raise NothingToExport("no times among the samples")
    header = next(f.header for f in files if f.samples)
    e = header.environment
    about = {
        "machine_info": {"node": "", "machine": e.cpu, "system": e.platform, "python_version": e.python},
        "commit_info": {"id": e.commit or "unversioned", "time": header.started, "dirty": bool(e.dirty)},
        "benchmarks": benchmarks,
        "datetime": header.started,
        "version": e.packages.get("pytest-benchmark", "5"),
    }
    return json.dumps(about, indent=1) + "\n"


TEXTS: dict[str, Callable[[Sequence[ResultFile]], str]] = {
    "junit.xml": junit,
    "badge.json": endpoint,
    "badge.svg": badge,
    "github-action-benchmark.json": github_action_benchmark,
    "bencher.json": bencher,
    "pytest-benchmark.json": pytest_benchmark,
}
"""File name -> what writes it."""
LEFT_OUT = "left-out.txt"
"""Says which forms were not written, and why."""


def write(files: Sequence[ResultFile], folder: Path) -> tuple[list[Path], list[str]]:
    """Write every form that the files have something for; (paths, what was left out and why)."""
    folder.mkdir(parents=True, exist_ok=True)
    written, left_out = [], []
    for name, form in TEXTS.items():
        try:
            text = form(files)
        except NothingToExport as error:
            left_out.append(f"{name}: {error}")
            continue
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    table = frame(files)
    table.to_csv(folder / "results.csv", index=False)
    written.append(folder / "results.csv")
    if importlib.util.find_spec("pyarrow") is None:
        left_out.append("results.parquet: needs pyarrow: pip install 'kvproof[report]'")
    else:
        table.to_parquet(folder / "results.parquet", index=False)
        written.append(folder / "results.parquet")
    (folder / LEFT_OUT).write_text("".join(f"{line}\n" for line in left_out), encoding="utf-8")
    return written, left_out


def _summaries(files: Sequence[ResultFile]) -> list[Summary]:
    found = [summarize(f) for f in files if f.header.what == "conformance"]
    if not found:
        raise NothingToExport("no conformance file")
    return found


def _state(summaries: Sequence[Summary]) -> tuple[str, str]:
    """(message, colour) of a badge."""
    bad = sum(any(not f.advisory for f in s.failures) for s in summaries)
    held = sum(v is Verdict.PASS for s in summaries for v in s.verdicts.values())
    judged = held + sum(v in BAD for s in summaries for v in s.verdicts.values())
    if any(not s.file.footer.complete for s in summaries):
        return "incomplete", GREY
    return (f"{held} of {judged} hold", RED if bad else GREEN) if judged else ("nothing judged", GREY)


def _measured(files: Sequence[ResultFile]) -> Iterator[tuple[str, Sample]]:
    """(name, sample) of all that was measured; a later file replaces a point of an earlier one."""
    found = {}
    for s in (s for f in files for s in f.samples if s.rounds):
        where = ", ".join(f"{k}={v}" for k, v in s.parameters.items())
        found[f"{s.implementation}/{s.cell}[{where}] {s.unit}"] = s
    if not found:
        raise NothingToExport("no samples")
    yield from found.items()


def _measure(unit: str) -> str:
    """The slug of a unit: ns/sequence -> ns-sequence, GB/s -> gb-s."""
    return re.sub(r"[^a-z0-9]+", "-", unit.lower()).strip("-") or "value"


def _plain(text: Any) -> str:
    """Text without the control characters that XML 1.0 has no place for."""
    return "".join(c for c in str(text) if c in "\n\t" or c >= " ")

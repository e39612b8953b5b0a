"""A conformance file on the terminal. Colours only where there is one: rich sees to that."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.records import Verdict
from kvproof.report import matrix
from kvproof.report.results import ResultFile
from kvproof.report.slim import again
from kvproof.report.summary import APART, BAD, JUDGED, Failure, Summary, summarize

_STYLES = {
    **dict.fromkeys(BAD, "bold red"),
    Verdict.XFAIL: "yellow",
    Verdict.PASS: "green",
}


UNSUPPORTED, NEEDS = Verdict.UNSUPPORTED, "needs "
NAMED = 3
"""So many requirements that a subject does not support are named on the terminal; more are counted."""
PIPE_WIDTH = 110
IN_FULL = 2
"""So many implementations have all of their report on the terminal; more share a table."""


def show_run(files: Sequence[ResultFile], console: Console) -> None:
    """Print what a run of one or several says.

    Raises:
        ResultsError: see `summarize`.
    """
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = max(console.width, PIPE_WIDTH)
    if len(files) > IN_FULL:
        show_all(files, console)
    else:
        for file in files:
            show(file, file.path, console)
    for one in matrix.matrices(files):
        matrix.show(one, console)


def show(file: ResultFile, report: Path, console: Console | None = None) -> None:
    """Print the failures, what did not run and the table; the last line is the path of the report.

    Raises:
        ResultsError: see `summarize`.
    """
    console = console or Console()
    summary = summarize(file)
    _failures(console, summary)
    _not_here(console, summary)
    _not_run(console, summary)
    _table(console, summary)
    if first := summary.first_look():
        _line(console, first)
    if margins := summary.margins():
        _line(console, f"largest error over its bound: {margins}", "dim")
    bad = file.footer.exit_status != 0 or not file.footer.complete
    _line(console, f"{summary.headline}, {summary.counted}", "bold red" if bad else "bold green")
    # Paths are copied: no wrapping, no styling.
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)


def show_all(files: Sequence[ResultFile], console: Console) -> None:
    """Print the failures of several, what is not here, and one table with a row for each.

    Raises:
        ResultsError: see `summarize`.
    """
    summaries = [summarize(file) for file in files]
    for summary in summaries:
        if summary.failures or summary.known:
            _line(console, f"{summary.file.header.implementation}:", "bold")
        _failures(console, summary)
    _not_here(console, summaries[0])
    _planned(console, summaries[0])
    seen = {v for s in summaries for v in s.columns}
    columns = [v for v in (*JUDGED, *APART) if v in seen and v is not Verdict.PLANNED]
    table = Table(box=None, pad_edge=False)
    table.add_column("implementation", no_wrap=True)
    table.add_column("profile", no_wrap=True)
    table.add_column("", no_wrap=True)  # how it ended: before the numbers, which a narrow terminal cuts
    for verdict in columns:
        table.add_column(verdict.value, justify="right", style=_STYLES.get(verdict, ""), no_wrap=True)
    for title in ("cases", "s"):
        table.add_column(title, justify="right")
    for s in summaries:
        header, footer = s.file.header, s.file.footer
        counts = Counter(s.verdicts.values())
        numbers = [str(counts[v] or "") for v in columns]
        bad = footer.exit_status != 0 or not footer.complete
        how = Text(s.ending, style="bold red" if bad else "bold green")
        numbers += [str(footer.cases), f"{footer.seconds:.0f}"]
        table.add_row(header.implementation, header.profile, how, *numbers)
    console.print(table)
    for s in summaries:
        if first := s.first_look():
            _line(console, f"{s.file.header.implementation}: {first}")


def _failures(console: Console, summary: Summary) -> None:
    for failure in summary.failures:
        _failure(console, failure, again(summary.file.header, failure.requirement.id))
    for failure in summary.known:
        reason = failure.result.reason or "no reason was given"
        _line(console, f"known  {failure.requirement.id} {failure.requirement.title}: {reason}", "yellow")


def _line(console: Console, text: str, style: str = "") -> None:
    # Histories hold brackets; they are not markup.
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)


def _table(console: Console, summary: Summary) -> None:
    head, rows = summary.table()
    table = Table(box=None, pad_edge=False)
    table.add_column(head[0])
    for verdict in summary.columns:
        table.add_column(verdict.value, justify="right", style=_STYLES.get(verdict, ""))
    for row in rows[:-1]:
        table.add_row(*row)
    table.add_section()
    table.add_row(*rows[-1], style="bold")
    console.print(table)


def _failure(console: Console, failure: Failure, anew: str) -> None:
    r, result = failure.requirement, failure.result
    advice = " (SHOULD: does not fail the run)" if failure.advisory else ""
    _line(
        console, f"{result.verdict} {r.id}: {r.title}{advice}", "yellow" if failure.advisory else "bold red"
    )
    console.print(Text(r.text), highlight=False)
    if result.reason:
        _line(console, result.reason)
    pool = failure.pool()
    _line(console, f"case {result.case}" + (f", {pool}" if pool else ""))
    for line in failure.history():
        _line(console, f"  {line}", "bold" if line.endswith("<- here") else "")
    if result.expected:
        _line(console, f"  expected: {result.expected}")
    if result.got:
        _line(console, f"  got:      {result.got}")
    if result.after:
        _line(console, f"  may follow from an earlier finding in this history: {result.after}")
    if failure.others:
        _line(console, f"  also in {', '.join(failure.others[:5])}" + (", ..." if failure.others[5:] else ""))
    _line(console, f"  replay: {result.replay}" if result.replay else f"  run it again: {anew}")
    console.print()


def _not_here(console: Console, summary: Summary) -> None:
    for name, what in sorted(summary.file.header.environment.missing.items()):
        _line(console, f"not here: {name} ({what})")


def _not_run(console: Console, summary: Summary) -> None:
    reasons: dict[tuple[Verdict, str], list[str]] = {}
    for item in summary.not_run:
        reasons.setdefault((item.verdict, item.why), []).append(item.requirement.id.removeprefix("KVP-"))
    lacking = {
        why.removeprefix(NEEDS): n
        for (v, why), n in reasons.items()
        if v is UNSUPPORTED and why.startswith(NEEDS)
    }
    if sum(map(len, lacking.values())) > NAMED:
        counted = ", ".join(f"{name} {len(names)}" for name, names in lacking.items())
        total = sum(map(len, lacking.values()))
        said = f"UNSUPPORTED: {total} requirements (listed in summary.md), by what they need: {counted}"
        for line in textwrap.wrap(said, max(console.width, 60), subsequent_indent="  "):
            _line(console, line, "dim")
        reasons = {
            (v, why): n
            for (v, why), n in reasons.items()
            if v is not UNSUPPORTED or not why.startswith(NEEDS)
        }
    for (verdict, why), names in reasons.items():
        _line(console, f"{verdict}: {why}: {', '.join(names)}", "dim")
    for line in summary.left_out():
        _line(console, line, "dim")
    _planned(console, summary)


def _planned(console: Console, summary: Summary) -> None:
    if summary.planned:
        areas = Counter(r.area for r in summary.planned)
        planned = ", ".join(f"{area} {count}" for area, count in areas.items())
        _line(console, f"planned, not tested yet: {planned}", "dim")

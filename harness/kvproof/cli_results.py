"""The commands that read result files."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from kvproof import document, options
from kvproof.comparing import BOUND
from kvproof.options import WrongInput

if TYPE_CHECKING:
    from kvproof.report.compare import Compared
    from kvproof.report.results import ResultFile

COMMITTED = ("baselines", "thirdparty")
"""Beside the folder of runs: results that a clone comes with."""
NOTHING_RUN = "no result file in {results}; run `kvproof conformance` or `kvproof bench` first"
BASELINES = Path("results/baselines")
"""Committed runs, a folder a machine."""


@click.command()
@click.argument("runs", metavar="[BEFORE] AFTER", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--baseline",
    is_flag=True,
    help=f"Compare AFTER with the run in {BASELINES}/ of the machine that AFTER was made on.",
)
@click.option(
    "--again",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="A second run of what AFTER measured: a gate asks for a slowdown in both.",
)
@click.option(
    "--gate", is_flag=True, help="Fail on changed exact counters too, and on what is slower in two runs."
)
@click.option(
    "--bound",
    type=click.FloatRange(min=1, min_open=True),
    default=BOUND,
    show_default=True,
    metavar="RATIO",
    help="The change in time that matters: a gate fails beyond it, and SAME is within it.",
)
@document.option
def compare(
    runs: tuple[Path, ...], baseline: bool, again: Path | None, gate: bool, bound: float, as_json: bool
) -> None:
    """Say what differs between two runs, files or folders of them, conformance and benchmarks together.

    Exit status: 0; 1 a verdict is worse, or with --gate one more of these: an exact counter (blocks, hits,
    evictions, bytes, messages and so on) has changed, something measured is gone, or the same thing is slower
    by more than the bound in AFTER and in the run given by --again; 3 with --gate: times are void, as the
    machine was too busy in one of the runs.
    """
    from kvproof.report.baseline import fitting
    from kvproof.report.compare import differences
    from kvproof.report.results import ResultsError, read

    def files(given: Path) -> list[ResultFile]:
        return [read(path) for path in _jsonl(given) if path.name != "history.jsonl"]

    wanted = ("AFTER",) if baseline else ("BEFORE", "AFTER")
    if len(runs) != len(wanted):
        raise WrongInput(f"{len(runs)} runs are named; give {' '.join(wanted)}, or --baseline AFTER")
    if not math.isfinite(bound):
        raise WrongInput(f"--bound {bound}: allowed is a number above 1, such as 1.1")
    with document.saying("compare", as_json) as said:
        try:
            new = files(runs[-1])
            old = fitting(BASELINES, new) if baseline else files(runs[0])
            found = differences(old, new, bound)
            second = differences(old, files(again), bound) if again else None
        except ResultsError as error:
            raise WrongInput(str(error)) from error
        said.compared = found
        failed = tell_changes(found, bound)
        slower = found.slower(bound)
        if gate:
            twice = slower & second.slower(bound) if second else set()
            failed |= bool(twice) or any(item.gates for item in found.items)
            if slower and not second:
                many = f"{len(slower)} slower by more than {bound:g}x"
                click.echo(f"gate: {many}; --again FILE, a second run, settles it")
            void = found.void or (second is not None and second.void)
            whose = "" if found.void else " with --again"
            ending = "FAILED" if failed else f"no answer, times{whose} are void" if void else "passed"
            worse, gates = (sum(getattr(i, what) for i in found.items) for what in ("worse", "gates"))
            why = f"{worse} for the worse, {gates} changed or gone"
            click.echo(f"gate: {ending}, {why}, {len(twice)} slower by more than {bound:g}x in two runs")
            sys.exit(1 if failed else 3 if void else 0)
        sys.exit(1 if failed else 0)


def tell_changes(found: Compared, bound: float = BOUND) -> bool:
    """Show what differs; whether a verdict is for the worse."""
    for line in (*found.notes, *found.lines()):
        click.echo(line)
    worse = sum(item.worse for item in found.items)
    if found.times:
        click.echo(f"times: {found.counted()}; SAME is within {bound:g}x, or twice the floor")
    click.echo(f"{found.verdicts} verdicts differ; {worse} for the worse in all")
    return worse > 0


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@options.results
@click.option(
    "--site",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/site"),
    show_default=True,
    help="Folder for the pages; a site that is there is replaced.",
)
@click.option("--open", "opened", is_flag=True, help="Open the first page in a browser.")
@options.quiet
@document.option
def report(
    files: tuple[Path, ...], results: Path, site: Path, opened: bool, quiet: bool, as_json: bool
) -> None:
    """Show result files again, those given or the newest of conformance, and write them as pages.

    FILES are result files or folders of them; without any, the pages show all that lies beside RESULTS. Where
    nothing was run yet, that is the committed results.
    """
    from kvproof.report import charts
    from kvproof.report.site import pages

    with document.saying("report", as_json) as said:
        named = [path for given in files for path in _jsonl(given)]
        chosen = named or _newest(results)
        committed = [] if chosen else [path for name in COMMITTED for path in _jsonl(results.parent / name)]
        if not (chosen or committed):
            raise WrongInput(f"no conformance file in {results}; run `kvproof conformance` first")
        if committed:
            click.echo(
                f"no run in {results} yet: the pages show the {len(committed)} committed files instead"
            )
        found = _read(chosen)
        said.files = [file.path for file in found] or committed
        if chosen and not found:
            raise WrongInput("no run that has ended is among them: nothing to show")
        if not quiet:
            _show(found)
        for file in found:
            for picture in charts.draw(file.samples, file.path.parent):
                if not quiet:
                    click.echo(picture)
        if charts.missing() and any(file.samples for file in found) and not quiet:
            click.echo(f"no charts without {', '.join(charts.missing())}: pip install 'kvproof[report]'")
        if pages.missing():
            lacking = ", ".join(pages.missing())
            click.echo(
                f"no site without {lacking}: pip install 'kvproof[report]', or '/path/to/checkout[report]'"
            )
            return
        try:
            first = pages.build(named or committed or _jsonl(results.parent), site)
        except ValueError as error:
            raise WrongInput(str(error)) from error
        except OSError as error:
            raise _unwritable(error, site) from error
        said.report = first
        click.echo(f"site: {first}")
        if opened:
            click.launch(str(first))


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@options.results
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/export"),
    show_default=True,
    help="Folder for what is written.",
)
@document.option
def export(files: tuple[Path, ...], results: Path, folder: Path, as_json: bool) -> None:
    """Write result files for other tools: JUnit, CSV, Parquet, badges, trackers of benchmarks.

    FILES are result files or folders of them; without any, the newest of conformance.
    """
    from kvproof.report import exports
    from kvproof.report.results import ResultsError

    with document.saying("export", as_json) as said:
        chosen = [path for given in files for path in _jsonl(given)] or _newest(results)
        if not chosen:
            raise WrongInput(NOTHING_RUN.format(results=results))
        found = _read(chosen)
        try:
            written, left_out = exports.write(found, folder)
        except ResultsError as error:
            raise WrongInput(str(error)) from error
        except OSError as error:
            raise _unwritable(error, folder) from error
        said.report, said.files, said.notes = folder, [file.path for file in found], left_out
        for path in written:
            click.echo(path)
        if left_out:
            click.echo(f"left out: {len(left_out)} forms; why: {folder / exports.LEFT_OUT}")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@options.results
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("results/history.jsonl"),
    show_default=True,
    help="The history, which grows by a line for each implementation of a run.",
)
@document.option
def history(files: tuple[Path, ...], results: Path, path: Path, as_json: bool) -> None:
    """Add runs to the history, and say what changed for good; without FILES all under RESULTS."""
    from kvproof.report import history as past
    from kvproof.report.results import ResultsError

    with document.saying("history", as_json) as said:
        chosen = [f for given in files or ((results,) if results.is_dir() else ()) for f in _jsonl(given)]
        if not (chosen or path.is_file()):
            raise WrongInput(NOTHING_RUN.format(results=results))
        found = _read(chosen)
        try:
            added = past.append(path, found)
            changes = past.changes(past.read(path))
        except ResultsError as error:
            raise WrongInput(f"{error}; mend the line or name another --file") from error
        except OSError as error:
            raise _unwritable(error, path) from error
        said.report, said.files, said.changes = path, [file.path for file in found], changes
        for change in changes:
            click.echo(change)
        plural = ["" if n == 1 else "s" for n in (added, len(changes))]
        click.echo(f"{added} line{plural[0]} added, {len(changes)} lasting change{plural[1]}: {path}")


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the merged files.",
)
@options.quiet
@document.option
def merge(files: tuple[Path, ...], into: Path, quiet: bool, as_json: bool) -> None:
    """Put the shards of runs together (`--shard 1/3`, `2/3`, `3/3`): one file for each implementation.

    Shards that are missing, given twice or of different runs are refused. The exit status is that of the
    whole run.
    """
    from kvproof.report.results import ResultsError
    from kvproof.shards import merge as put_together

    with document.saying("merge", as_json) as said:
        try:
            paths, status = put_together([p for f in files for p in _jsonl(f)], into)
        except ResultsError as error:
            raise WrongInput(str(error)) from error
        except OSError as error:
            raise _unwritable(error, into) from error
        said.report, said.files = into, paths
        tell(paths, quiet)
        sys.exit(status)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--to",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The smaller file; one that is there is replaced.",
)
def slim(file: Path, to: Path) -> None:
    """Make a conformance file small enough to be committed, for the pages to show.

    What holds keeps one line for each requirement; each failure keeps the case that reports show, with what
    they draw of it. Places of the machine are taken out.
    """
    from kvproof.report import slim as smaller
    from kvproof.report.results import ResultsError

    found = _read([file])
    if not found:
        raise WrongInput(f"{file}: the run did not end; only a complete file can be committed")
    try:
        smaller.slim(found[0], to)
    except ResultsError as error:
        raise WrongInput(str(error)) from error
    except OSError as error:
        raise _unwritable(error, to) from error
    click.echo(f"{to}: {to.stat().st_size:,} bytes of {file.stat().st_size:,}")


def tell(paths: list[Path], quiet: bool) -> None:
    """What the whole of a run that was done in parts says, and where it is."""
    if not quiet:
        _show(_read(paths))
    for path in paths:
        click.echo(path)


def _show(files: list[ResultFile]) -> None:
    """The tables of runs, as they were shown when they had been done.

    Raises:
        WrongInput: a file contradicts itself.
    """
    from kvproof.bench import tables
    from kvproof.report.results import ResultsError
    from kvproof.report.terminal import show_run

    console = Console(emoji=False)
    try:
        if judged := [file for file in files if file.header.what == "conformance"]:
            show_run(judged, console)
    except ResultsError as error:
        raise WrongInput(str(error)) from error
    for file in files:
        if file.header.what == "bench":
            tables.terminal(console, file.samples)


def _read(paths: list[Path]) -> list[ResultFile]:
    """The runs that have ended; one that has not is named and left out, a history passed over.

    Raises:
        WrongInput: one of them is no result file.
    """
    from kvproof.report.history import NAME
    from kvproof.report.results import Incomplete, ResultsError, read

    found = []
    for path in paths:
        try:
            if path.name != NAME:
                found.append(read(path))
        except Incomplete as error:
            click.echo(f"left out: {path.parent}/{error}", err=True)
        except (ResultsError, UnicodeDecodeError) as error:
            raise WrongInput(f"{path}: no result file: {error}") from error
    return found


def _unwritable(error: OSError, where: Path) -> WrongInput:
    return WrongInput(f"{where}: {error.strerror or error}; name a place that can be written")


def _jsonl(given: Path) -> list[Path]:
    return [given] if given.is_file() else sorted(given.rglob("*.jsonl"))


def _newest(results: Path) -> list[Path]:
    runs = sorted(results.glob("*-conformance*")) if results.is_dir() else []
    return sorted(runs[-1].glob("*.jsonl")) if runs else []

"""The command line: kvproof conformance | bench | compare | report | spec | impls | smoke | replay."""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console

from kvproof import __version__
from kvproof import spec as specification
from kvproof.ledger import LedgerError
from kvproof.subjects import SubjectError, find, installed
from kvproof.subjects.find import CHECKOUT_VARIABLE
from kvproof.subjects.host import CALL_LIMIT

OK, FINDINGS, USAGE, INCOMPLETE = 0, 1, 2, 3

_impl = click.option(
    "--impl",
    "impls",
    multiple=True,
    metavar="WHERE",
    help="NAME[:FACTORY], path/to/adapter.py[:FACTORY] or package.module[:FACTORY]; may be given again.",
)
_checkout = click.option(
    "--checkout",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Folder of a checkout, for adapters to repositories that are no packages.",
)
_results = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/runs"),
    show_default=True,
    help="Folder for reports; each run makes one of its own there.",
)
_seed = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of everything that is drawn."
)
_quiet = click.option("--quiet", is_flag=True, help="No progress and no tables: the path of the report only.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kvproof")
def main() -> None:
    """Conformance suite and benchmark for paged KV caches."""


@main.command()
@_impl
@_checkout
@click.option("--profile", type=click.Choice(["manager", "scheduler"]), default="manager", show_default=True)
@click.option(
    "--requirement", "requirements", multiple=True, metavar="ID", help="Judge this one only, or an area."
)
@click.option(
    "--histories",
    type=click.IntRange(min=0),
    default=600,
    show_default=True,
    help="How many seeded random histories.",
)
@click.option(
    "--deep",
    is_flag=True,
    help="Ten times the histories, long ones on larger pools, and a search by Hypothesis.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Begin no random history later than this in the run of an implementation; directed ones all run.",
)
@click.option(
    "--call-limit",
    type=click.FloatRange(min=0.05),
    default=CALL_LIMIT,
    show_default=True,
    help="Seconds that one call may take.",
)
@_seed
@_results
@_quiet
def conformance(
    impls: tuple[str, ...],
    checkout: str | None,
    profile: str,
    requirements: tuple[str, ...],
    histories: int,
    deep: bool,
    budget: float | None,
    call_limit: float,
    seed: int,
    results: Path,
    quiet: bool,
) -> None:
    """Judge implementations against the specification (reference and plain by default).

    Exit status: 0 at least one MUST ran and none failed, 1 findings, 2 wrong usage, 3 incomplete or empty.
    """
    from kvproof.conformance.run import exit_status, judge_all
    from kvproof.conformance.session import Settings
    from kvproof.report.markdown import render
    from kvproof.report.results import read
    from kvproof.report.terminal import show

    if deep and find_spec("hypothesis") is None:
        raise click.UsageError("--deep needs Hypothesis: pip install hypothesis")
    _use(checkout)
    console = Console(emoji=False)
    index = specification.load()
    folder = _run_folder(results, "conformance")
    settings = Settings(
        profile=profile,
        requirements=_selected(index, requirements),
        histories=histories * 10 if deep else histories,
        deep=deep,
        budget=budget,
        seed=seed,
        call_limit=call_limit,
        folder=folder,
    )
    try:
        judged = judge_all(impls or ("reference", "plain"), settings, console, quiet)
    except (SubjectError, LedgerError) as error:
        raise click.UsageError(str(error)) from error
    summary = folder / "summary.md"
    for one in judged:
        if one.path is not None and not one.trouble:
            file = read(one.path)
            with summary.open("a", encoding="utf-8") as stream:
                stream.write(render(file) + "\n")
            if not quiet:
                show(file, one.path, console)
        if one.trouble:
            console.print(one.trouble, style="red", markup=False, highlight=False, soft_wrap=True)
    click.echo(f"summary: {summary}" if summary.is_file() else f"folder: {folder}")
    sys.exit(exit_status(judged))


@main.command()
@_impl
@_checkout
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Replay this trace (Mooncake JSONL or Azure CSV, .gz too) instead of the synthetic one.",
)
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Cache size of the replay in tokens; may be given again. 0 is no bound. Default: 256 Ki and 1 Mi.",
)
@click.option("--block-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--cell", "cells", multiple=True, metavar="NAME", help="Run these cells only.")
@click.option("--full", is_flag=True, help="The whole matrix instead of the quick one.")
@_seed
@_results
@_quiet
def bench(
    impls: tuple[str, ...],
    checkout: str | None,
    trace: Path | None,
    capacities: tuple[int, ...],
    block_size: int,
    cells: tuple[str, ...],
    full: bool,
    seed: int,
    results: Path,
    quiet: bool,
) -> None:
    """Measure implementations: control plane and trace replay (reference beside plain by default)."""
    from kvproof.bench.run import run

    _use(checkout)
    try:
        status = run(
            impls=list(impls or ("reference", "plain")),
            trace=trace,
            capacity=list(capacities),
            block_size=block_size,
            cells=list(cells) or None,
            quick=not full,
            seed=seed,
            out=results,
            quiet=quiet,
        )
    except (SubjectError, OSError) as error:
        raise click.UsageError(str(error)) from error
    sys.exit(status)


@main.command()
@click.argument("where")
@_checkout
@click.option("--call-limit", type=click.FloatRange(min=0.05), default=CALL_LIMIT, show_default=True)
def smoke(where: str, checkout: str | None, call_limit: float) -> None:
    """Say whether the ADAPTER is sane, before any compliance is judged."""
    from kvproof.conformance.smoke import smoke_test

    _use(checkout)
    try:
        missing = find(where).missing()
        if missing:
            click.echo(
                f"{where}: not looked at: "
                + "; ".join(f"{w} is not here: {how}" for w, how in missing.items())
            )
            sys.exit(OK)
        notes, faults = smoke_test(where, call_limit)
    except SubjectError as error:
        raise click.UsageError(str(error)) from error
    for line in notes:
        click.echo(f"  {line}")
    for line in faults:
        click.secho(f"  ERROR {line}", fg="red")
    click.echo(f"{where}: the adapter is {'not sane' if faults else 'sane'}")
    sys.exit(FINDINGS if faults else OK)


@main.command()
@click.argument("vector", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_impl
@_checkout
def replay(vector: Path, impls: tuple[str, ...], checkout: str | None) -> None:
    """Run a saved history step by step and show what is seen."""
    from kvproof.conformance.replay import replay_vector

    _use(checkout)
    try:
        found = [replay_vector(vector, impl, Console(emoji=False)) for impl in impls or ("reference",)]
    except (SubjectError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    sys.exit(FINDINGS if any(found) else OK)


@main.command()
@click.argument("selection", required=False)
@click.option("--lint", is_flag=True, help="Check ids, capabilities, citations and schemas.")
def spec(selection: str | None, lint: bool) -> None:
    """Print a requirement, an area, or the whole specification as Markdown."""
    index = specification.load()
    if lint:
        from kvproof.conformance.citing import citations
        from kvproof.schemas import stale

        wrong = [*specification.lint(index, citations()), *stale()]
        for line in wrong:
            click.echo(line)
        click.echo(f"{len(index.requirements)} requirements, {len(wrong)} faults")
        sys.exit(FINDINGS if wrong else OK)
    try:
        click.echo(specification.markdown(index, selection))
    except specification.SpecError as error:
        raise click.UsageError(str(error)) from error


@main.command()
def impls() -> None:
    """List the installed implementations and what each lacks here."""
    for one in installed():
        missing = "; ".join(f"needs {what}: {how}" for what, how in one.missing().items())
        click.echo(f"{one.name:<16} {one.version:<8} {one.summary}" + (f"  [{missing}]" if missing else ""))


@main.command()
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare(before: Path, after: Path) -> None:
    """Say which verdicts differ between two conformance files; 1 if any is worse."""
    from kvproof.report.compare import changes
    from kvproof.report.results import ResultsError, read

    try:
        worse, lines = changes(read(before), read(after))
    except ResultsError as error:
        raise click.UsageError(str(error)) from error
    for line in lines:
        click.echo(line)
    click.echo(f"{len(lines)} verdicts differ, {worse} for the worse")
    sys.exit(FINDINGS if worse else OK)


@main.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_results
def report(files: tuple[Path, ...], results: Path) -> None:
    """Show conformance files again: those given, or the newest run."""
    from kvproof.report.results import ResultsError, read
    from kvproof.report.terminal import show

    chosen = list(files) or _newest(results)
    if not chosen:
        raise click.UsageError(f"no conformance file in {results}; run `kvproof conformance` first")
    for path in chosen:
        try:
            show(read(path), path)
        except ResultsError as error:
            raise click.UsageError(str(error)) from error


def _use(checkout: str | None) -> None:
    if checkout:
        os.environ[CHECKOUT_VARIABLE] = checkout


def _run_folder(results: Path, what: str) -> Path:
    """A new folder for this run, named by the time it began."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(100):
        folder = results / (f"{stamp}-{what}" + (f"-{number}" if number else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise click.UsageError(
                f"--results {results}: {error.strerror}; give a folder that can be written"
            ) from error
        return folder
    raise click.UsageError(f"{results} has a hundred runs of this second")


def _newest(results: Path) -> list[Path]:
    runs = sorted(results.glob("*-conformance*")) if results.is_dir() else []
    return sorted(runs[-1].glob("*.jsonl")) if runs else []


def _selected(index: specification.Spec, names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(r.id for name in names for r in index.select(name))
    except specification.SpecError as error:
        raise click.UsageError(str(error)) from error


if __name__ == "__main__":
    main()

"""The command line of kvproof: one function a command."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from kvproof import __version__, authoring, cli_results, cli_runs, document, options, progress
from kvproof import spec as specification
from kvproof.ledger import LedgerError
from kvproof.options import WrongInput
from kvproof.subjects import SubjectError, installed
from kvproof.subjects.host import CALL_LIMIT, KERNEL_CALL_LIMIT

OK, FINDINGS = 0, 1


class Commands(click.Group):
    """Whichever is broken off from the keyboard ends with the status of an incomplete run."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(document.BROKEN_OFF, err=True)
            sys.exit(document.INCOMPLETE)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kvproof")
def main() -> None:
    """Conformance suite and benchmark for paged KV caches."""


@main.command()
@options.impl
@options.checkout
@click.option(
    "--profile",
    type=click.Choice(options.PROFILES),
    help="What the implementations are.  [default: manager; without --impl all profiles of our own]",
)
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
@options.call_limit
@options.shard
@options.ray
@options.parts
@options.seed
@options.results
@options.quiet
@document.option
def conformance(
    impls: tuple[str, ...],
    checkout: str | None,
    profile: str | None,
    requirements: tuple[str, ...],
    histories: int,
    deep: bool,
    budget: float | None,
    call_limit: float | None,
    shard: tuple[int, int] | None,
    ray: str | None,
    parts: int,
    seed: int,
    results: Path,
    quiet: bool,
    as_json: bool,
) -> None:
    """Judge implementations against the specification (our own by default).

    Exit status: 0 at least one MUST ran and none failed, 1 findings, 2 wrong usage, 3 incomplete or empty.
    """
    from kvproof.conformance.run import default_subjects, exit_status, judge_all
    from kvproof.conformance.session import Settings
    from kvproof.report import matrix
    from kvproof.report.markdown import render
    from kvproof.report.results import read
    from kvproof.report.terminal import show_run

    if deep and find_spec("hypothesis") is None:
        raise click.UsageError("--deep needs Hypothesis: pip install hypothesis")
    if ray and as_json:
        raise click.UsageError("--ray and --json: run `kvproof report FOLDER --json` on what the run wrote")
    if ray:
        sys.exit(cli_runs.on_cluster(ray, parts, shard, results, quiet, "conformance"))
    with document.saying("conformance", as_json) as said:
        options.use(checkout)
        console = Console(emoji=False)
        index = specification.load()
        chosen = options.selected(index, requirements)
        folder = said.report = options.run_folder(results, "conformance")
        settings = Settings(
            requirements=chosen,
            histories=histories * 10 if deep else histories,
            deep=deep,
            budget=budget,
            seed=seed,
            folder=folder,
            shard=shard,
        )
        judged = []
        try:
            for each in (profile,) if profile else options.profiles(index, chosen, bool(impls)):
                limit = call_limit or (KERNEL_CALL_LIMIT if each == "kernel" else CALL_LIMIT)
                asked = replace(settings, profile=each, call_limit=limit)
                judged += judge_all(impls or default_subjects(each, deep), asked, quiet)
                if judged[-1].interrupted:
                    break
        except (SubjectError, LedgerError) as error:
            raise WrongInput(str(error)) from error
        except OSError as error:
            raise options.unwritable(error, results) from error
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()  # empty: nothing was judged
        summary = folder / "summary.md"
        files = [read(one.path) for one in judged if one.path is not None and not one.trouble]
        said.files = [file.path for file in files]
        side_by_side = matrix.matrices(files)
        if files:
            texts = [*map(matrix.markdown, side_by_side), *map(render, files)]
            summary.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        for each_matrix in side_by_side:
            matrix.write(each_matrix, folder)
        if files and not quiet:
            show_run(files, console)
        for one in judged:
            if one.trouble:
                console.print(
                    f"Error: {one.trouble}", style="red", markup=False, highlight=False, soft_wrap=True
                )
        if folder.is_dir():
            click.echo(f"summary: {summary}" if summary.is_file() else f"folder: {folder}")
        sys.exit(exit_status(judged))


@main.command()
@options.impl
@options.checkout
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
@click.option("--cell", "cells", cls=options.CellOption, multiple=True, metavar="NAME")
@click.option("--full", is_flag=True, help="The whole matrix instead of the quick one.")
@click.option(
    "--profile",
    type=click.Choice(options.MEASURED),
    help="Run the cells of this profile only.  [default: all that the implementations are for]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where kernels are measured.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=1,
    metavar="TIMES",
    help="Give slow implementations so many times the usual time before they are left out.",
)
@click.option(
    "--rounds",
    "processes",
    type=click.IntRange(min=1),
    help="Time each implementation in so many processes: 5 if not told, as `kvproof compare` needs, on a GPU "
    "1 for all kernels; 1: all in one process.",
)
@click.option("--noisy", is_flag=True, help="9 rounds, for a busy machine.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Measure in turns with the code in DIR, an earlier checkout of yours or of kvproof, and compare: "
    "both meet the same moments of the machine. --rounds tells how many turns, 10 if not told; fewer leave "
    "all times UNCLEAR.",
)
@click.option("--turn", type=int, hidden=True)
@options.shard
@options.ray
@options.parts
@options.seed
@options.results
@options.quiet
@document.option
def bench(
    impls: tuple[str, ...],
    checkout: str | None,
    trace: Path | None,
    capacities: tuple[int, ...],
    block_size: int,
    cells: tuple[str, ...],
    full: bool,
    profile: str | None,
    device: str,
    patience: float,
    processes: int | None,
    noisy: bool,
    against: Path | None,
    turn: int | None,
    shard: tuple[int, int] | None,
    ray: str | None,
    parts: int,
    seed: int,
    results: Path,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure implementations: control plane, trace replay, ranks, attention (our own by default)."""
    if against and (shard or noisy or ray):
        raise click.UsageError("--against has turns of its own, here: leave out --shard, --noisy and --ray")
    if ray and as_json:
        raise click.UsageError("--ray and --json: run `kvproof report FOLDER --json` on what the run wrote")
    if ray:
        sys.exit(cli_runs.on_cluster(ray, parts, shard, results, quiet, "bench"))
    with document.saying("bench", as_json) as said:
        from kvproof.bench.run import run

        def wrote(file: Path) -> None:
            said.report, said.files = file.parent, [file]

        options.use(checkout)
        try:
            if against:
                where = against, impls, cells, trace, processes, results
                sys.exit(cli_runs.in_turns(*where, quiet, said, patience))
            status = run(
                impls=list(impls),
                trace=trace,
                capacity=list(capacities),
                block_size=block_size,
                cells=list(cells) or None,
                quick=not full,
                seed=seed,
                out=results,
                quiet=quiet,
                profile=profile,
                device=device,
                patience=patience,
                shard=shard,
                processes=max(processes or 0, 9) if noisy else processes,
                turn=turn,
                wrote=wrote,
            )
        except SubjectError as error:
            raise WrongInput(str(error)) from error
        except OSError as error:
            raise options.unwritable(error, results) from error
        sys.exit(status)


@main.command()
@click.argument("vector", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@options.impl
@options.checkout
def replay(vector: Path, impls: tuple[str, ...], checkout: str | None) -> None:
    """Run a saved history step by step, on who showed it unless told otherwise, and show what is seen."""
    from kvproof.conformance.replay import load_vector, replay_vector

    options.use(checkout)
    try:
        named = impls or (load_vector(vector).implementation or "reference",)
        found = [replay_vector(vector, impl, Console(emoji=False)) for impl in named]
    except (SubjectError, ValueError) as error:
        raise WrongInput(str(error)) from error
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
        raise WrongInput(str(error)) from error


@main.command()
def impls() -> None:
    """List the installed implementations and what each lacks here."""
    try:
        found = installed()
    except SubjectError as error:
        raise WrongInput(str(error)) from error
    for one in found:
        missing = "; ".join(f"needs {what}: {how}" for what, how in one.missing().items())
        click.echo(f"{one.name:<16} {one.version:<8} {one.summary}" + (f"  [{missing}]" if missing else ""))


@main.command()
@document.option
def claims(as_json: bool) -> None:
    """Check the figures of the chapter: counted on the reference, measured where the machine allows."""
    from kvproof.claims import check
    from kvproof.claims.show import show

    with document.saying("claims", as_json) as said:
        try:
            with progress.bar() as shown:
                row = shown.add_task("claims", total=None)
                said.claims = check(lambda claim: shown.advance(row))
        except SubjectError as error:
            raise WrongInput(str(error)) from error
        show(said.claims, Console(emoji=False))


for command in authoring.COMMANDS:
    main.add_command(command)


main.add_command(cli_results.compare)
main.add_command(cli_results.report)
main.add_command(cli_results.export)
main.add_command(cli_results.history)
main.add_command(cli_results.merge)
main.add_command(cli_results.slim)

if __name__ == "__main__":
    main()

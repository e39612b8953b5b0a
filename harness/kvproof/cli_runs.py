"""Runs that are made of several: parts on a cluster, and two versions in turns."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from kvproof import document, options, progress
from kvproof.cli_results import tell, tell_changes
from kvproof.options import WrongInput

FLAGS = ("--noisy", "--quiet", "--json")
"""Of `kvproof bench`, which mean the whole of a run and not its turns."""


def on_cluster(
    address: str, parts: int, shard: tuple[int, int] | None, results: Path, quiet: bool, what: str
) -> int:
    """Run this command's parts on a Ray cluster and merge them; the exit status of the whole run."""
    from kvproof.report.results import ResultsError
    from kvproof.shards import merge
    from kvproof.spread import spread, without

    if shard:
        raise click.UsageError("--shard and --ray: a run on a cluster has parts of its own")
    folder = options.run_folder(results, what)
    arguments = without(sys.argv[1:], "--ray", "--parts", "--results")
    try:
        paths, status = merge(spread(address, parts, arguments, folder / "parts", quiet), folder)
    except ResultsError as error:
        raise WrongInput(str(error)) from error
    tell(paths, quiet)
    return status


def in_turns(
    before: Path,
    impls: Sequence[str],
    cells: Sequence[str],
    trace: Path | None,
    turns: int | None,
    results: Path,
    quiet: bool,
    said: document.Saying,
    patience: float,
) -> int:
    """Measure this version and that of another checkout in turns, and compare them; the exit status."""
    from kvproof.bench.turns import TURNS, TurnError, take
    from kvproof.report.compare import differences
    from kvproof.report.results import ResultsError, read
    from kvproof.spread import without

    _are_two(before, impls)
    turns = turns or TURNS
    arguments = without(sys.argv[2:], "--against", "--cell", "--checkout", "--results", "--rounds", "--trace")
    arguments = [a for a in arguments if a not in FLAGS]
    arguments += ["--trace", str(trace.resolve())] if trace else []
    folder = options.run_folder(results, "turns")
    try:
        with progress.bar(quiet) as shown:
            row, done = shown.add_task("", total=turns), iter(range(turns))

            def told(what: str) -> None:
                shown.update(row, description=what, completed=next(done, turns))

            said.files = take(before, arguments, cells, turns, folder, told, patience)
    except TurnError as error:
        kept = f"; what was measured before is in {folder}" if any(folder.glob("*/bench.jsonl")) else ""
        raise WrongInput(f"{error}{kept}") from error
    finally:
        with contextlib.suppress(OSError):  # nothing was written, or not all of it
            folder.rmdir()
    try:
        found = said.compared = differences([read(said.files[0])], [read(said.files[1])])
    except ResultsError as error:
        raise WrongInput(str(error)) from error
    worse = tell_changes(found)
    for path in said.files:
        click.echo(f"report: {path.parent / 'bench.md'}")
    said.report = said.files[-1].parent
    return int(worse or read(said.files[1]).footer.exit_status > 0)


def _are_two(before: Path, impls: Sequence[str]) -> None:
    """Raises UsageError if both versions would be the same code."""
    if before.samefile("."):
        raise click.UsageError(f"--against {before}: it is this folder; name a checkout of another version")
    for impl in impls:
        place, adapter, _ = impl.partition(".py")
        if adapter and (os.path.isabs(place) or os.path.normpath(place).startswith("..")):
            raise click.UsageError(
                f"--impl {impl}: beside --against name it as it lies in both, such as ./adapter.py: "
                "this is one file for both"
            )

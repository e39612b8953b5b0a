"""Options that several commands share, and how wrong input is told."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kvproof import runs
from kvproof import spec as specification
from kvproof.subjects.find import CHECKOUT_VARIABLE
from kvproof.subjects.host import CALL_LIMIT, KERNEL_CALL_LIMIT

impl = click.option(
    "--impl",
    "impls",
    multiple=True,
    metavar="WHERE",
    help="NAME[:FACTORY], path/to/adapter.py[:FACTORY], package.module[:FACTORY] or process:COMMAND; may be "
    "given again.",
)
checkout = click.option(
    "--checkout",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="Folder of a checkout, for adapters to repositories that are no packages.",
)
results = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/runs"),
    show_default=True,
    help="Folder for reports; each run makes one of its own there.",
)
call_limit = click.option(
    "--call-limit",
    type=click.FloatRange(min=0.05),
    help=f"Seconds that one call may take.  [default: {CALL_LIMIT:g}, a kernel's {KERNEL_CALL_LIMIT:g}]",
)
seed = click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of everything that is drawn."
)
quiet = click.option("--quiet", is_flag=True, help="No progress and no tables: the path of the report only.")


class Shard(click.ParamType[tuple[int, int]]):
    """Part i of n, written i/n."""

    name = "i/n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d+)/(\d+)", value)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"{value!r}: a part is written i/n, with i from 1 to n, such as 2/3", param, ctx)
        return int(found[1]), int(found[2])


shard = click.option(
    "--shard", type=Shard(), metavar="I/N", help="Run part I of N; `kvproof merge` puts the parts together."
)

ray = click.option(
    "--ray",
    metavar="ADDRESS",
    help='Spread the run over a Ray cluster, "auto" for the one here, and put its parts together.',
)
parts = click.option(
    "--parts", type=click.IntRange(min=1), default=8, show_default=True, help="Parts of a run with --ray."
)

PROFILES = ("manager", "scheduler", "ranks", "kernel")
MEASURED = ("manager", "scheduler", "ranks", "kernel")
"""Profiles that have cells in the benchmark."""


def profiles(index: specification.Spec, chosen: Sequence[str], named: bool) -> Sequence[str]:
    """Those of the chosen requirements; else the manager's for a named implementation, else all."""
    asked = {index.requirements[r].profile for r in chosen}
    return [p for p in PROFILES if p in asked] or (PROFILES[:1] if named or asked else PROFILES)


def selected(index: specification.Spec, names: Sequence[str]) -> tuple[str, ...]:
    """The requirements that `--requirement` names, by id or area."""
    try:
        return tuple(r.id for name in names for r in index.select(name))
    except specification.SpecError as error:
        raise WrongInput(str(error)) from error


def use(checkout: str | None) -> None:
    """Tell `--checkout` to the adapters of this process and of those that it starts."""
    if checkout:
        os.environ[CHECKOUT_VARIABLE] = checkout


class WrongInput(click.ClickException):
    """Something that the user named cannot be used: one line, and exit status 2."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def unwritable(error: OSError, results: Path) -> WrongInput:
    """What to say where the folder for reports, or a file in it, cannot be made."""
    where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return WrongInput(f"--results {results}: {where}; give a folder that can be written")


def run_folder(results: Path, what: str) -> Path:
    """A new folder for this run in `--results`."""
    try:
        return runs.new_folder(results, what)
    except OSError as error:
        raise unwritable(error, results) from error


class CellOption(click.Option):
    """`--cell`, whose help lists the cells; they are read when it is asked for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        files = sorted((specification.find() / "scenarios").glob("*.toml"))
        names = [name for file in files for name in tomllib.loads(file.read_text(encoding="utf-8"))]
        self.help = f"Run these cells only: {', '.join(names)}."
        return super().get_help_record(ctx)

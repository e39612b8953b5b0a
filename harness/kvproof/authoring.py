"""What helps who writes an adapter: `kvproof smoke` (is it sane?), `new-adapter` (a skeleton), `protocol`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from kvproof import options
from kvproof.options import WrongInput
from kvproof.subjects import SubjectError, find

SKELETONS = Path(__file__).with_name("skeletons")
KINDS = ("manager", "scheduler", "kernel", "ranks")
FILES = {"adapter.py": "{kind}.py.txt", "impl.toml": "impl.toml.txt", "known.toml": "known.toml.txt"}


def write(name: str, kind: str, folder: Path) -> list[Path]:
    """Write the files of a new adapter into `folder`/`name`.

    Args:
        name: a Python name: the folder's, and the one in the comments.
        kind: one of KINDS.

    Returns:
        Their paths.

    Raises:
        ValueError: the name cannot be a module's, or the kind is not known.
        FileExistsError: one of the files is there; then none is written.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot name a Python module: letters, digits and _ are allowed")
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: allowed are {', '.join(KINDS)}")
    place = folder / name
    if there := [str(place / file) for file in FILES if (place / file).exists()]:
        raise FileExistsError(f"{', '.join(there)}: already there; nothing was written")
    place.mkdir(parents=True, exist_ok=True)
    for file, skeleton in FILES.items():
        text = (SKELETONS / skeleton.format(kind=kind)).read_text(encoding="utf-8")
        (place / file).write_text(text.format(name=name, kind=kind), encoding="utf-8")
    return [place / file for file in FILES]


@click.command("new-adapter")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="manager", show_default=True, help="What it is.")
def new_adapter(name: str, kind: str) -> None:
    """Write a commented skeleton of an adapter into the folder NAME: what is blank is yours to fill in."""
    try:
        paths = write(name, kind, Path())
    except (ValueError, OSError) as error:
        raise WrongInput(str(error)) from error
    for path in paths:
        click.echo(path)
    factory = {"scheduler": ":make_scheduler", "ranks": ":make_ranks"}.get(kind, "")
    click.echo(f"fill in what says blank in {paths[0]}, then: kvproof smoke {paths[0]}{factory}")


@click.command()
@click.option("--send", is_flag=True, help="The requests only, for: kvproof protocol --send | ./my_server")
@click.option("--answers", is_flag=True, help="The answers only, as the plain implementation gives them.")
def protocol(send: bool, answers: bool) -> None:
    """Print the messages of a small history: what a program in another language is asked, and answers."""
    from kvproof.subjects.example import exchanges

    if send and answers:
        raise click.UsageError("--send or --answers, not both")
    for why, request, answer in exchanges():
        if send or answers:
            click.echo(request if send else answer)
            continue
        if why:
            click.echo(f"# {why}")
        click.echo(f"-> {request}\n<- {answer}")


@click.command()
@click.argument("where")
@options.checkout
@click.option(
    "--profile",
    type=click.Choice(options.MEASURED),
    help="What it is.  [default: what its factory takes]",
)
@options.call_limit
def smoke(where: str, checkout: str | None, profile: str | None, call_limit: float | None) -> None:
    """Say whether the ADAPTER is sane, before any compliance is judged."""
    from kvproof.conformance.smoke import smoke_test

    options.use(checkout)
    try:
        missing = find(where).missing()
        if missing:
            click.echo(
                f"{where}: not looked at: "
                + "; ".join(f"{w} is not here: {how}" for w, how in missing.items())
            )
            sys.exit(3)  # nothing was judged
        notes, faults = smoke_test(where, call_limit, profile or "")
    except SubjectError as error:
        raise WrongInput(str(error)) from error
    console = Console(emoji=False)
    for line in notes:
        click.echo(f"  {line}")
    for line in faults:
        console.print(f"  ERROR {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    click.echo(f"{where}: the adapter is {'not sane' if faults else 'sane'}")
    sys.exit(1 if faults else 0)


COMMANDS = (smoke, new_adapter, protocol)

"""Spreads the parts of a run over a Ray cluster, and puts the results together.

A part is one task that starts `kvproof ... --shard i/n` on its node and brings its files home. Ray runs the
parts of a lost node again; as a part's files arrive all at once or not at all, nothing is lost or twice.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof.options import WrongInput
from kvproof.progress import bar

RETRIES = 5
"""How often a part is run again whose node was lost."""


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """Arguments of a command line without some options that take a value."""
    kept, skip = [], False
    for argument in arguments:
        name, given, _ = argument.partition("=")
        if not skip and name not in options:
            kept.append(argument)
        skip = not skip and name in options and not given
    return kept


def one_part(arguments: Sequence[str], shard: str) -> tuple[int, dict[str, bytes], str]:
    """Run a part here: (exit status, relative path -> content of each result file, last words)."""
    with tempfile.TemporaryDirectory(prefix="kvproof-") as folder:
        where = ["--shard", shard, "--results", folder, "--quiet"]
        command = [sys.executable, "-m", "kvproof.cli", *arguments, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        root = Path(folder)
        files = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    return done.returncode, files, (done.stdout + done.stderr)[-2000:]


def spread(
    address: str, parts: int, arguments: Sequence[str], folder: Path, quiet: bool = False
) -> list[Path]:
    """Run all parts on the cluster and write their files below `folder`/1 ... `folder`/n.

    Args:
        address: of the cluster, as `ray.init` takes it: "auto", "host:port" or "ray://host:port".
        arguments: of kvproof, the command first, without --ray, --parts, --results and --shard.

    Returns:
        The result files, for `kvproof merge`.

    Raises:
        WrongInput: Ray is not installed or not there, or a part could not be run; its last words are told.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise WrongInput("--ray needs Ray: pip install 'kvproof[ray]'") from None
    mine = not ray.is_initialized()
    if mine:
        try:
            ray.init(address=address, log_to_driver=False)
        except Exception as error:
            raise WrongInput(f"--ray {address}: {error}") from None
    try:
        with bar(quiet) as shown:
            task = ray.remote(max_retries=RETRIES, num_cpus=1)(one_part)
            waiting = {task.remote(list(arguments), f"{i}/{parts}"): i for i in range(1, parts + 1)}
            found: list[Path] = []
            row = shown.add_task("parts", total=parts)
            while waiting:
                (ready,), _ = ray.wait(list(waiting), num_returns=1)
                part = waiting.pop(ready)
                try:
                    status, files, words = ray.get(ready)
                except ray.exceptions.RayError as error:
                    raise WrongInput(f"part {part}/{parts} could not be run: {error}") from None
                if status == 2 or not files:
                    raise WrongInput(f"part {part}/{parts} ended with status {status}: {words}")
                for name, content in files.items():
                    path = folder / str(part) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                    found += [path] if path.suffix == ".jsonl" else []
                shown.advance(row)
            return sorted(found)
    finally:
        if mine:
            ray.shutdown()

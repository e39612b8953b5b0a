"""The bar that long commands show on a terminal: how much is done and how much time is left."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

COLUMNS = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()


@contextlib.contextmanager
def bar(quiet: bool = False) -> Iterator[Progress]:
    """A bar on standard error, so that what is printed can go to a file; none where that is no terminal."""
    if quiet or not sys.stderr.isatty():
        with Progress(disable=True) as hidden:
            yield hidden
        return
    # A copy of the stream: pytest, run in process, takes away the descriptor as well as the name.
    with (
        open(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as stream,
        Progress(*COLUMNS, console=Console(file=stream), transient=True) as shown,
    ):
        yield shown

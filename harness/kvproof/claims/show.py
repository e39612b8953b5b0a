"""Claims as a table on the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvproof.claims.claim import Claim, Verdict

STYLES = {Verdict.HOLDS: "green", Verdict.FAILS: "red", Verdict.GPU: "dim", Verdict.NOT_RUN: "dim"}
PIPE_WIDTH = 140


def show(claims: Sequence[Claim], console: Console) -> None:
    """A row a claim, and how many hold."""
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = max(console.width, PIPE_WIDTH)
    table = Table("", "claim", "chapter", "found", "verdict", box=box.SIMPLE_HEAD, show_edge=False)
    for c in claims:
        cells = (c.section, c.claim, c.said, c.found)
        table.add_row(*map(Text, cells), Text(c.verdict, style=STYLES[c.verdict]))
    console.print(table)
    counts = Counter(c.verdict for c in claims)
    console.print(
        f"{len(claims)} claims: " + ", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v]),
        highlight=False,
    )
    console.print("of the text on paged KV caches that the reference implements; none is about your code")

"""`--json`: a command says in one JSON document what it came to, and all else goes to standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from kvproof.derived import Claimed, Differing, Document, Failed, Told

if TYPE_CHECKING:
    from kvproof.claims import Claim
    from kvproof.report.compare import Compared
    from kvproof.report.history import Change

option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON document (specs/schemas/document.json), and all else on standard error.",
)
Command = Literal["conformance", "bench", "compare", "report", "export", "history", "merge", "claims"]


@dataclass
class Saying:
    """What a command has found so far, filled in while it runs."""

    report: Path | None = None
    files: Sequence[Path] = ()
    compared: Compared | None = None
    changes: Sequence[Change] = ()
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()


@contextlib.contextmanager
def saying(command: Command, as_json: bool) -> Iterator[Saying]:
    """Around a command that ends with `sys.exit`, or by itself, which is status 0.

    Of a command that was used wrongly there is no document: one line on standard error, and status 2.
    """
    said = Saying()
    if not as_json:
        yield said
        return
    status = 0
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield said
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    click.echo(_document(command, said, status).model_dump_json(indent=1))
    sys.exit(status)


def _document(command: Command, said: Saying, status: int) -> Document:
    found = Document(
        command=command,
        exit_status=status,
        report=str(said.report or ""),
        files=tuple(told for path in said.files if (told := _told(path))),
        differences=tuple(
            Differing(word="slower" if c.step.after > c.step.before else "faster", what=str(c), worse=False)
            for c in said.changes
        ),
        claims=tuple(Claimed.model_validate(asdict(c)) for c in said.claims),
        notes=tuple(said.notes),
    )
    if said.compared is None:
        return found
    counts: dict[str, int] = {}
    for c in said.compared.times.values():
        counts[c.verdict] = counts.get(c.verdict, 0) + 1
    items = [Differing(word=i.word, what=i.text, worse=i.worse) for i in said.compared.items]
    return found.model_copy(
        update={"differences": tuple(items), "times": counts, "notes": tuple(said.compared.notes)}
    )


def _told(path: Path) -> Told | None:
    """What a file came to; None for one that is not whole, which the command has told on its way."""
    from kvproof.report.results import ResultsError, read
    from kvproof.report.summary import summarize

    try:
        file = read(path)
    except ResultsError:
        return None
    h = file.header
    told = Told(
        path=str(path),
        what=h.what,
        implementation=h.implementation,
        version=h.version,
        profile=h.profile,
        exit_status=file.footer.exit_status,
        points=sum(s.rounds > 0 for s in file.samples),
        void=file.footer.void,
    )
    if h.what == "bench":
        return told
    summary = summarize(file)
    counts = {v: sum(v is one for one in summary.verdicts.values()) for v in summary.columns}
    failures = tuple(
        Failed(
            requirement=f.requirement.id,
            title=f.requirement.title,
            verdict=f.result.verdict,
            must=not f.advisory,
            expected=f.result.expected,
            got=f.result.got,
            reason=f.result.reason,
            replay=f.result.replay,
        )
        for f in summary.failures
    )
    return told.model_copy(update={"verdicts": counts, "failures": failures})

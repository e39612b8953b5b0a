"""Several implementations of one run side by side: a verdict for each requirement and implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvproof.derived import Matrix
from kvproof.records import Level, Requirement, Verdict
from kvproof.report.results import ResultFile
from kvproof.report.summary import BAD, summarize

LETTERS = {
    Verdict.FAIL: "F",
    Verdict.TIMEOUT: "T",
    Verdict.ERROR: "E",
    Verdict.XPASS: "X",
    Verdict.XFAIL: "x",
    Verdict.PASS: "P",
    Verdict.UNSUPPORTED: "-",
    Verdict.PRECONDITION: "?",
    Verdict.PLANNED: ".",
    Verdict.NOT_RUN: "o",
}


def matrices(files: Sequence[ResultFile]) -> list[Matrix]:
    """One for each profile of which several were judged, in the order of the files.

    Raises:
        ResultsError: see `summarize`.
    """
    found = []
    for profile in dict.fromkeys(file.header.profile for file in files):
        some = [file for file in files if file.header.profile == profile]
        if len(some) < 2:
            continue
        verdicts = [summarize(file).verdicts for file in some]
        known = {r.id: r for file in some for r in file.header.requirements}
        found.append(
            Matrix(
                profile=profile,
                implementations=tuple(file.header.implementation for file in some),
                versions=tuple(file.header.version for file in some),
                files=tuple(file.path.name for file in some),
                requirements=tuple(known[name] for name in sorted(known)),
                verdicts={n: tuple(v.get(n, Verdict.NOT_RUN) for v in verdicts) for n in sorted(known)},
            )
        )
    return found


def show(matrix: Matrix, console: Console) -> None:
    """Print what differs or fails, a letter an implementation; rows that are alike are counted only."""
    named = ", ".join(f"{n} {name}" for n, name in enumerate(matrix.implementations, 1))
    _line(console, f"{matrix.profile} side by side: {named}", "bold")
    head = " ".join(str(n) for n in range(1, len(matrix.implementations) + 1))
    rows = list(_rows(matrix))
    if rows:
        _line(console, f"  {head}", "dim")
    for letters, what, bad in rows:
        _line(console, f"  {letters}  {what}", "red" if bad else "")
    used = dict.fromkeys(v for row in _told(matrix).values() for v in row)
    meaning = ", ".join(f"{LETTERS[v]} {v}" for v in LETTERS if v in used)
    _line(console, "  " + "; ".join(filter(None, [meaning, _alike(matrix)])), "dim")


def markdown(matrix: Matrix) -> str:
    """Every requirement a row, every implementation a column; those that differ or fail are bold."""
    told = _told(matrix)
    head = ["requirement", "", *(f"{n}".replace("|", "\\|") for n in matrix.implementations)]
    lines = [f"# {matrix.profile}: requirements by implementation", ""]
    rows = [head, ["---"] * len(head)]
    for r in matrix.requirements:
        name = f"**{r.id}**" if r.id in told else r.id
        rows.append([name, r.title, *matrix.verdicts[r.id]])
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join([*lines, ""])


def write(matrix: Matrix, folder: Path) -> Path:
    """The matrix as a file of its own, by its schema."""
    path = folder / f"matrix-{matrix.profile}.json"
    path.write_text(matrix.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def _told(matrix: Matrix) -> dict[str, tuple[Verdict, ...]]:
    """Requirements that fail somewhere, or whose verdicts differ."""
    return {n: row for n, row in matrix.verdicts.items() if len(set(row)) > 1 or set(row) & set(BAD)}


def _rows(matrix: Matrix) -> Iterator[tuple[str, str, bool]]:
    """(letters, what they are of, whether one is bad): failing ones a row each, others by equal letters."""
    told, widths = _told(matrix), [len(str(n)) for n in range(1, len(matrix.implementations) + 1)]
    known = {r.id: r for r in matrix.requirements}
    others: dict[str, list[str]] = {}
    for name, row in told.items():
        letters = " ".join(LETTERS[v].rjust(w) for v, w in zip(row, widths, strict=True))
        if set(row) & set(BAD):
            yield letters, _title(known[name]), True
        else:
            others.setdefault(letters, []).append(name.removeprefix("KVP-"))
    for letters, names in others.items():
        yield letters, ", ".join(names), False


def _title(r: Requirement) -> str:
    return f"{r.id.removeprefix('KVP-')} {r.title}" + (" (SHOULD)" if r.level is Level.SHOULD else "")


def _alike(matrix: Matrix) -> str:
    told = _told(matrix)
    counts = Counter(row[0] for name, row in matrix.verdicts.items() if name not in told)
    numbers = ", ".join(f"{counts[v]} {v}" for v in LETTERS if counts[v])
    return f"alike in all: {numbers}" if numbers else ""


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)

"""Replays a saved history and shows every step of it."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from kvproof import spec
from kvproof.conformance.session import Session, Settings
from kvproof.histories.build import runnable
from kvproof.records import Case
from kvproof.subjects import find
from kvproof.subjects.host import Worker


def load_vector(path: Path) -> Case:
    """The case in a vector file.

    Raises:
        ValueError: it is no vector; the message says what is wrong with it.
    """
    try:
        return Case.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{path}: not a vector: {where}: {first['msg']}") from None


def replay_vector(path: Path, where: str, console: Console) -> bool:
    """Run the vector on an implementation; True if it shows a finding or did not end.

    Raises:
        SubjectError, ValueError: the implementation or the vector cannot be used.
    """
    case, implementation = load_vector(path), find(where)
    with Worker(implementation) as worker:
        session = Session(
            worker, spec.load(), Settings(), worker.describe(case.num_blocks + 1, case.block_size)
        )
        lacking = runnable(case, session.gates)
        if lacking:
            console.print(f"{where}: UNSUPPORTED: needs {', '.join(sorted(lacking))}", markup=False)
            return False
        outcome, findings = session.run(case)
    console.print(f"{where}: {case.num_blocks} blocks of {case.block_size} tokens", markup=False)
    for step, op in enumerate(case.history):
        if step >= len(outcome.observations):
            break
        seen = outcome.observations[step]
        tables = ", ".join(f"{s}: {list(t)}" for s, t in seen.tables.items())
        value = f" = {seen.value}" if seen.value is not None else ""
        _line(console, f"{step:>3}  {op} -> {seen.outcome}{value}")
        _line(console, f"       tables {{{tables}}}  free {seen.free}", "dim")
        for finding in findings:
            if finding.step == step:
                _line(console, f"     {finding.requirement}: expected {finding.expected}", "bold red")
                _line(console, f"     {' ' * len(finding.requirement)}  got      {finding.got}", "bold red")
    if outcome.end != "complete":
        _line(console, f"ended at step {outcome.step}: {outcome.end}: {outcome.detail}", "bold red")
    if not findings and outcome.end == "complete":
        _line(console, "no finding", "green")
    return bool(findings) or outcome.end != "complete"


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)

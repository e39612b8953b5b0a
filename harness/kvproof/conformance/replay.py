"""Replays a saved history and shows every step of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from kvproof import spec
from kvproof.conformance.look import FACTORIES, first_look
from kvproof.conformance.session import Session, Settings
from kvproof.histories.build import runnable
from kvproof.histories.payload import inputs, setting_of
from kvproof.records import Case, Finding, Operation, room_text, short
from kvproof.report.steps import told
from kvproof.subjects import find
from kvproof.subjects.host import CALL_LIMIT, KERNEL_CALL_LIMIT, Worker

MOST_ROWS = 8
"""Sequences of a kernel's call that are listed."""
MOST_FREE = 1000
"""Blocks of a kernel's pool among which those of nobody are listed."""


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
        at = f"{where}: " if where else ""
        raise ValueError(f"{path}: not a vector: {at}{first['msg']}") from None


def replay_vector(path: Path, where: str, console: Console) -> bool:
    """Run the vector on an implementation; True if it shows a finding or did not end.

    Raises:
        SubjectError, ValueError: the implementation or the vector cannot be used.
    """
    case = load_vector(path)
    implementation = find(where, FACTORIES[case.profile])
    limit = KERNEL_CALL_LIMIT if case.kernel is not None else CALL_LIMIT
    with Worker(implementation, limit) as worker:
        description = first_look(worker, case.profile)
        session = Session(worker, spec.load(), Settings(profile=case.profile), description)
        lacking = runnable(case, session.gates)
        if lacking:
            console.print(f"{where}: UNSUPPORTED: needs {', '.join(sorted(lacking))}", markup=False)
            return False
        outcome, findings = session.run(case)
    console.print(f"{where}: {room_text(**case.room)}", markup=False)
    for step, op in enumerate(case.history):
        if step >= len(outcome.observations):
            break
        seen = outcome.observations[step]
        value = f" = {seen.value}" if seen.value is not None and case.profile == "manager" else ""
        _line(console, f"{step:>3}  {op} -> {seen.outcome}{value}")
        for line in _given(case, op) if case.kernel is not None else ():
            _line(console, f"       {line}", "dim")
        for line in told(seen.value) if case.profile in ("scheduler", "ranks") else ():
            _line(console, f"       {line}", "dim")
        tables = ", ".join(f"{s}: {list(t)}" for s, t in seen.tables.items())
        if case.profile in ("manager", "scheduler"):
            _line(console, f"       {f'tables {{{tables}}}  ' if tables else ''}free {seen.free}", "dim")
        _found(console, [f for f in findings if f.step == step])
    _found(console, [f for f in findings if f.step >= len(outcome.observations)])
    if outcome.end != "complete":
        _line(console, f"ended at step {outcome.step}: {outcome.end}: {outcome.detail}", "bold red")
    if not findings and outcome.end == "complete":
        _line(console, "no finding", "green")
    return bool(findings) or outcome.end != "complete"


def _found(console: Console, findings: Sequence[Finding]) -> None:
    for finding in findings:
        _line(console, f"     {finding.requirement}: expected {finding.expected}", "bold red")
        _line(console, f"     {' ' * len(finding.requirement)}  got      {finding.got}", "bold red")


def _given(case: Case, op: Operation) -> Iterator[str]:
    """What a kernel is called with, and which slots no row may read."""
    setting, given = setting_of(case, op), inputs(case, op)
    yield str(setting)
    for seq, (table, length) in enumerate(zip(given.tables[:MOST_ROWS], setting.lengths, strict=False)):
        used = length % given.block_size
        tail = f", unused from offset {used} of block {table[-1]} on" if used else ""
        yield f"sequence {seq}: length {length}, blocks {short(table)}{tail}"
    if len(given.tables) > MOST_ROWS:
        yield f"... {len(given.tables)} sequences in all"
    free = sorted(set(range(min(given.num_blocks, MOST_FREE))) - {b for t in given.tables for b in t})
    if free:
        more = f", and those from {MOST_FREE} on that no sequence has" * (given.num_blocks > MOST_FREE)
        yield f"blocks of nobody: {short(free)}{more}"


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False, soft_wrap=True)

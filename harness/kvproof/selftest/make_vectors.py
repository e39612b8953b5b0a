"""Writes specs/vectors: `python -m kvproof.selftest.make_vectors [FAULT ...]`.

For every planted fault that a history shows: a directed case that fails for its requirement, shrunk.
Vectors whose fault is gone are removed when all are made. The same sources give the same files.
"""

from __future__ import annotations

import json
import sys

from kvproof import spec
from kvproof.histories.build import History, runnable
from kvproof.histories.directed import cases
from kvproof.histories.shrink import shrink
from kvproof.records import Case, Requirement
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import CALL_LIMIT, SOUND, faults, session_of

RUNS = 400
"""So many runs may the shrinking of one case take."""
EXAMPLES = {
    "tp/capacity-chapter": "tp/TP-001-example-of-the-chapter",
    "tp/capacity-one-short": "tp/TP-001-example-one-rank-short",
    "tp/capacity-first-largest": "tp/TP-001-example-first-rank-largest",
}
"""Directed cases with figures of the chapter or of real reports -> the names of their vectors."""
TRIED = 8
"""So many of the cases that fail are shrunk."""


def main() -> int:
    folder = spec.find() / "vectors"
    index = spec.load()
    histories = [name for name, f in faults().items() if index.requirements[f.requirement].profile in SOUND]
    names = sys.argv[1:] or sorted(histories)
    names = [n for n in names if index.requirements[faults()[n].requirement].profile in SOUND]
    written = set()
    for name in names:
        requirement = index.requirements[faults()[name].requirement]
        case = make_vector(name, requirement)
        if case is None:
            print(f"no history shows {name} ({requirement.id})")
            continue
        path = folder / f"{case.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(case), encoding="utf-8")
        written.add(path)
        print(f"{path.relative_to(folder)}: {len(case.history)} operations")
    for case in examples():
        path = folder / f"{case.id}.json"
        path.write_text(text(case), encoding="utf-8")
        written.add(path)
    if not sys.argv[1:]:
        for path in set(folder.glob("*/*.json")) - written:
            path.unlink()
            print(f"removed {path.relative_to(folder)}")
    return 0


def examples() -> list[Case]:
    """The directed cases that are vectors as they are."""
    found = {c.id: c for c in cases()}
    return [
        found[name].model_copy(update={"id": vector, "note": f"Example: {found[name].note}"})
        for name, vector in EXAMPLES.items()
    ]


def make_vector(name: str, requirement: Requirement) -> Case | None:
    """The vector of one planted fault; None if no directed case finds it."""
    reference = session_of(InProcess(SOUND[requirement.profile]), requirement.profile)
    session = session_of(InProcess(f"faulty:{name}", CALL_LIMIT), requirement.profile)

    def cut(case: Case) -> list[Case]:
        """The case up to its finding; nothing if it has none, or the reference has one."""
        steps = [f.step for f in session.run(case)[1] if f.requirement == requirement.id]
        if not steps or reference.run(case)[1]:
            return []
        return [case.model_copy(update={"history": case.history[: steps[0] + 1]})]

    def price(case: Case) -> tuple[int, int, int]:
        """One that asks for little can be run on many, unless it is very long; then the shortest."""
        return len(case.history) // 50, len(_needs(case, requirement)), len(case.history)

    mine = [c for c in cases() if c.profile == requirement.profile and not runnable(c, session.gates)]
    aimed = [c for c in mine if requirement.id in c.aim]
    found = [c for case in aimed for c in cut(case)] or [c for case in mine for c in cut(case)]
    small = [shrink(c, lambda c: bool(cut(c)), RUNS) for c in sorted(found, key=price)[:TRIED]]
    return _named(min(small, key=price), name, requirement) if small else None


def _named(case: Case, name: str, requirement: Requirement) -> Case:
    fault = faults()[name]
    return Case(
        id=f"{requirement.area.lower()}/{requirement.id.removeprefix('KVP-')}-{name}",
        aim=(requirement.id,),
        needs=_needs(case, requirement),
        num_blocks=case.num_blocks,
        block_size=case.block_size,
        max_seqs=case.max_seqs,
        max_tokens=case.max_tokens,
        pools=case.pools,
        history=case.history,
        stands_for=case.stands_for,
        note=f"{requirement.title}. Fault: {fault.text}. Seen: {fault.model}.",
    )


def _needs(case: Case, requirement: Requirement) -> tuple[str, ...]:
    """What its requirement needs, what its author asked for beyond the calls, and what the calls need."""
    whole = next(c for c in cases() if c.id == case.id)
    asked = set(whole.needs) - _of_calls(whole)
    return tuple(sorted({*requirement.needs, *asked, *_of_calls(case)}))


def _of_calls(case: Case) -> set[str]:
    """Capabilities without which the calls of the history cannot be made."""
    if case.profile != "manager":
        return set()
    history = History()
    history.operations = list(case.history)
    return set(history.case("", (), 1, 1).needs)


def text(case: Case) -> str:
    """JSON with one operation a line."""
    fields = json.loads(case.model_dump_json(exclude_defaults=True))
    history = fields.pop("history")
    head = {name: fields.pop(name) for name in ("id", "note")} | fields
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in head.items()]
    operations = ",\n".join(f"  {json.dumps(op, ensure_ascii=False)}" for op in history)
    return "\n".join(["{", *lines, ' "history": [', operations, " ]", "}", ""])


if __name__ == "__main__":
    sys.exit(main())

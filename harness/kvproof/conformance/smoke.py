"""Whether an adapter is sane: it opens, has what it names, and answers with the right types."""

from __future__ import annotations

from kvproof import spec
from kvproof.histories.build import History, needed_by
from kvproof.records import Operation
from kvproof.subjects import find
from kvproof.subjects.host import Worker

REQUIRED = ("add", "append", "commit", "free", "table", "free_blocks")


def smoke_test(where: str, call_limit: float) -> tuple[list[str], list[str]]:
    """(notes, faults) about the adapter; nothing here is about compliance.

    Raises:
        SubjectError: it cannot be opened at all.
    """
    implementation = find(where)
    index = spec.load()
    notes, faults = [], []
    with Worker(implementation, call_limit) as worker:
        description = worker.describe(16, 4)
        named, members = set(description["capabilities"]), set(description["members"])
        notes.append(f"capabilities: {', '.join(sorted(named)) or 'none'}")
        faults += [f"member {m} is missing: every manager needs it" for m in REQUIRED if m not in members]
        for name in sorted(named):
            capability = index.capabilities.get(name)
            if capability is None or capability.profile not in ("manager", "pool"):
                faults.append(f"capability {name!r} is not known; see specs/capabilities.toml")
                continue
            absent = [m for m in capability.members if m not in members]
            faults += [f"capability {name!r} is named but {m} is missing" for m in absent]
        for name, capability in sorted(index.capabilities.items()):
            own = set(capability.members) - set(REQUIRED)
            if capability.profile in ("manager", "pool") and name not in named and own and own <= members:
                notes.append(
                    f"{', '.join(sorted(own))} is there but {name!r} is not named, so it is not judged"
                )
        if not faults:
            faults += _first_life(worker, named)
    return notes, faults


def _first_life(worker: Worker, named: set[str]) -> list[str]:
    """A short life with every named call once; only exceptions and wrong types are faults."""
    h = History().add(0, [1, 2, 3, 4, 5]).append(0, 6).add(1, [1, 2, 3, 4, 9])
    extra = [
        Operation(op="batch", seqs=(0, 1)),
        Operation(op="csr", seqs=(0, 1)),
        Operation(op="slots", seq=0, lo=0, hi=2),
        Operation(op="wire", seq=0),
        Operation(op="codec", seqs=(0,)),
        Operation(op="match", tokens=(1, 2, 3, 4, 5)),
        Operation(op="block_keys", tokens=(1, 2, 3, 4)),
        Operation(op="fork", seq=0, child=2),
        Operation(op="truncate", seq=1, length=2),
        Operation(op="swap_out", seq=1),
        Operation(op="swap_in", seq=1),
        Operation(op="reset"),
        Operation(op="alloc"),
        Operation(op="retain", blocks=(0,)),
        Operation(op="release", blocks=(0, 0)),
    ]
    for op in extra:
        if needed_by(op) <= named and not (op.op == "match" and "match" in named):
            h.op(**op.model_dump(exclude_none=True))
    case = h.free(0, 1).case("smoke", (), 16, 4)
    outcome = worker.run(case)
    if outcome.end == "complete":
        return []
    at = f"{case.history[outcome.step]}: " if 0 <= outcome.step < len(case.history) else ""
    return [f"{at}{outcome.detail}"]

"""Whether an adapter is sane: it opens, has what it names, and answers with the right types."""

from __future__ import annotations

from typing import Any

from kvproof import spec
from kvproof.conformance.look import FACTORIES
from kvproof.histories.build import History, needed_by
from kvproof.histories.directed.ranks import Ranks, add, decode, ends
from kvproof.histories.directed.scheduling import Load
from kvproof.histories.kernels import Serves, Template, Unserved, call
from kvproof.records import Case, Operation
from kvproof.subjects import SubjectError, find
from kvproof.subjects.host import CALL_LIMIT, KERNEL_CALL_LIMIT, Worker
from kvproof.subjects.making import TAKES

REQUIRED = {
    "manager": ("add", "append", "commit", "free", "table", "free_blocks"),
    "scheduler": ("submit", "has_work", "plan", "feed", "abort", "preempted", "free_blocks"),
    "ranks": ("step", "form", "table", "digest", "epoch", "free_blocks", "lost"),
    "kernel": ("decode", "layout", "limits"),
}
SHAPES: dict[str, tuple[Any, ...]] = {
    "manager": (16, 4),
    "kernel": (),
    "scheduler": (16, 4, 4, 64),
    "ranks": ((16, 12), 4),
}
"""Arguments of the factory, in the order in which a subject of no named profile is tried."""


def smoke_test(where: str, call_limit: float | None = None, profile: str = "") -> tuple[list[str], list[str]]:
    """(notes, faults) about the adapter; nothing here is about compliance.

    Without `profile` it is what the arguments of its factory say.

    Raises:
        SubjectError: it cannot be opened at all.
    """
    implementation = find(where, FACTORIES[profile or "manager"])
    index = spec.load()
    notes, faults = [], []
    with Worker(implementation, call_limit or CALL_LIMIT) as worker:
        kind, description = _described(worker, profile)
        profiles = spec.NAMES_OF[kind]
        named, members = set(description["capabilities"]), set(description["members"])
        notes.append(f"capabilities: {', '.join(sorted(named)) or 'none'}")
        absent = [m for m in REQUIRED[kind] if m not in members]
        faults += [f"member {m} is missing: every {kind} needs it" for m in absent]
        for name in sorted(named):
            capability = index.capabilities.get(name)
            if capability is None or capability.profile not in profiles:
                faults.append(index.misnamed([name], kind))
                continue
            if kind == "scheduler" and capability.profile != kind and name != "copies":
                continue  # of the manager beneath
            absent = [m for m in capability.members if m not in members]
            faults += [f"capability {name!r} is named but {m} is missing" for m in absent]
        for name, capability in sorted(index.capabilities.items()):
            own = set(capability.members) - set(REQUIRED[kind])
            if capability.profile == profiles[0] and name not in named and own and own <= members:
                notes.append(
                    f"{', '.join(sorted(own))} is there but {name!r} is not named, so it is not judged"
                )
        if kind == "kernel":
            worker.call_limit = call_limit or KERNEL_CALL_LIMIT
        if not faults and kind == "kernel":
            faults += _first_call(worker, description)
        elif not faults:
            faults += _run(worker, _first_case(kind, named))
    return notes, faults


def _described(worker: Worker, profile: str) -> tuple[str, dict[str, Any]]:
    """The profile, and what it says of itself."""
    first: SubjectError | None = None
    for kind in [profile] if profile else SHAPES:
        try:
            description = worker.describe(*SHAPES[kind])
        except SubjectError as error:
            if TAKES not in str(error):
                raise
            first = first or error
            continue
        return ("kernel" if "limits" in description else kind), description
    assert first is not None
    raise first


def _first_call(worker: Worker, description: dict[str, Any]) -> list[str]:
    """One decode and each other call that is named, at a shape within its limits."""
    serves, named = Serves(description["limits"], description["capabilities"]), description["capabilities"]
    calls = [call(), *([call("prefill", queries=(2,))] if "prefill" in named else [])]
    calls += [call("write", slots=(0, -1))] if "write" in named else []
    calls += [call("copy_blocks", pairs=((0, 1),))] if "copy_blocks" in named else []
    try:
        case = Template("smoke", (), lambda size, served: calls, lambda size: (size + 1,)).case(serves)
    except Unserved as error:
        return [str(error)]
    outcome = worker.run(case)
    wrong = [
        f"{op}: {seen.outcome}: {seen.detail}"
        for op, seen in zip(calls, outcome.observations, strict=False)
        if seen.outcome != "ok"
    ]
    return wrong or ([] if outcome.end == "complete" else [outcome.detail])


def _first_life(named: set[str]) -> Case:
    """A short life with every named call once."""
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
    return h.free(0, 1).case("smoke", (), 16, 4)


def _first_case(kind: str, named: set[str]) -> Case:
    if kind == "ranks":
        return _first_group()
    return _first_life(named) if kind == "manager" else _first_load()


def _first_group() -> Case:
    """Three steps, the loss of a rank, and one more step."""
    h = Ranks().step(add(0, 5), add(1, 3)).step(*decode(0, 1)).step(("free", 1))
    return h.step(*decode(0), faults=[ends(1, 0)]).form().step(*decode(0)).ranks("smoke", (), (16, 12), 4)


def _first_load() -> Case:
    """Two requests to their ends and one that is aborted."""
    load = Load().submit(0, 5, 3).submit(1, 9, 2).submit(2, 4, 2).steps(2).abort(2).drain()
    return load.load("smoke", (), (16, 4, 4, 64))


def _run(worker: Worker, case: Case) -> list[str]:
    """Only exceptions and wrong types are faults."""
    outcome = worker.run(case)
    if outcome.end == "complete":
        return []
    at = f"{case.history[outcome.step]}: " if 0 <= outcome.step < len(case.history) else ""
    return [f"{at}{outcome.detail}"]

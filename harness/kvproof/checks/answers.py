"""Judges what a call answered: errors that must come, successes that must, and no trace of a failure."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.checks.step import Step
from kvproof.records import Finding

_RELEASES = ("free", "release", "release_many")
_NEVER_REFUSED = {
    "free": "FREE-004",
    "truncate": "TRUNC-001",
    "commit": "ERR-001",
    "commit_batch": "ERR-001",
    "table": "TABLE-001",
    "batch": "BATCH-001",
    "csr": "BATCH-005",
    "slots": "SLOT-001",
    "match": "PREFIX-001",
}
"""Calls that need no block, and the requirement that a refusal breaks."""


def bad_input(step: Step) -> Iterator[Finding]:
    """ERR-001, ERR-002, FREE-001, TABLE-004: what must be refused is refused by name."""
    args = step.op.args or {}
    if not step.wrong_on_purpose or step.seen.outcome == "skipped":
        return
    if step.op.op in _RELEASES and args.get("unknown"):
        return  # an error or nothing; `unchanged` looks at the state
    if step.ok:
        what = str(args.get("bad") or "an unknown sequence")
        yield step.finding(_error_requirement(step), f"an error that names {what}", f"{step.op} succeeded")


def _error_requirement(step: Step) -> str:
    kind = (step.op.args or {}).get("bad")
    if step.op.op == "slots":
        return "TABLE-004"
    if step.op.op == "append_batch":
        return "STEP-001"
    if step.op.op == "codec":
        return "WIRE-001"
    if step.op.op == "retain":
        return "FREE-003"
    if step.op.op in ("release", "release_many"):
        return "FREE-001"
    if step.op.op == "sizing":
        return "SIZE-001"
    return "ERR-002" if kind == "a token that is no integer" else "ERR-001"


def unchanged(step: Step) -> Iterator[Finding]:
    """POOL-004 and its kin: a failed operation, or a second free, changes nothing observable."""
    second_free = step.op.op in _RELEASES and step.wrong_on_purpose and step.ok
    no_reset = step.op.op == "reset" and step.ok and not step.seen.value
    if not step.failed and not second_free and not no_reset:
        return
    difference = _difference(step)
    if difference is None:
        return
    expected, got = difference
    message = f"{step.op.op} answered {step.seen.value if no_reset else step.seen.outcome}"
    for requirement in _atomic_requirements(step):
        yield step.finding(requirement, expected, got, message)


def _atomic_requirements(step: Step) -> list[str]:
    op = step.op.op
    if op in _RELEASES:
        return ["FREE-001"]
    if op == "reset":
        return ["PREFIX-014"]
    if step.wrong_on_purpose:
        return [_error_requirement(step)]
    found = ["POOL-004"]
    if op == "fork" or (op == "append" and step.tail_shared(step.op.seq)):
        found.append("SHARE-003")
    if op in ("swap_out", "swap_in"):
        found.append("SWAP-002")
    if op == "append_batch":
        found.append("STEP-001")
    if op == "truncate":
        found.append("TRUNC-001")
    return found


def _difference(step: Step) -> tuple[str, str] | None:
    before, seen = step.before, step.seen
    free = step.free_before()
    if seen.free != free:
        return f"{free} free blocks as before", f"{seen.free}"
    for seq in sorted(set(before.tables) | set(seen.tables)):
        a, b = before.tables.get(seq), seen.tables.get(seq)
        if a != b:
            return f"table of sequence {seq} {_list(a)} as before", _list(b)
    for block in sorted(set(before.refs) & set(seen.refs)):
        if before.refs[block] != seen.refs[block]:
            return f"block {block} has {before.refs[block]} owners as before", f"{seen.refs[block]}"
    for seq, reads in seen.reads.items():
        if before.reads.get(seq, reads) != reads:
            return f"contents of {seq} as before", "other contents"
    if seen.copies:
        return "no copies", f"copies {list(seen.copies)}"
    return None


def _list(table: tuple[int, ...] | None) -> str:
    return "none" if table is None else str(list(table))


def must_succeed(step: Step) -> Iterator[Finding]:
    """POOL-003, POOL-006, EVICT-004, EVICT-005: a call is not refused while there is room."""
    if step.seen.outcome not in ("OutOfBlocks", "Refused", "BadInput", "UnknownSequence"):
        return
    if step.wrong_on_purpose:
        return
    op = step.op.op
    if step.was.keys() & ({step.op.seq} if op == "add" else {step.op.child}):
        return  # a shrunk history has lost the free between two lives of an id
    got = f"{step.seen.outcome}: {step.seen.detail}".rstrip(": ")
    if op in _NEVER_REFUSED:
        yield step.finding(_NEVER_REFUSED[op], f"{op} of a live sequence succeeds", got)
        return
    need = blocks_needed(step)
    if need is None:
        return
    free = step.free_before() or 0
    if need == 0:
        yield step.finding("POOL-006", f"{step.op}: no new block is needed, so it succeeds", got)
    elif need <= free:
        yield step.finding("POOL-003", f"{need} blocks needed, {free} reported free: succeeds", got)
    room = room_before(step)
    if need <= room and step.model.may_hit and step.has("prefix"):
        yield step.finding(
            "EVICT-004", f"{need} blocks needed, {room} neither held nor reserved: succeeds", got
        )


def room_before(step: Step) -> int:
    """Blocks that were surely neither held, nor reserved, nor kept back."""
    return step.facts.capacity - step.held_at_most() - step.facts.watermark


def blocks_needed(step: Step) -> int | None:
    """Blocks the operation needs at most; None if it may be refused for other reasons."""
    op, facts = step.op, step.facts
    if op.op == "add":
        return facts.blocks(len(op.tokens or ())) + facts.lookahead
    if op.op == "reclaim":
        return step.free_before()
    if op.op == "append_batch":
        needs = [_append_need(step, s, 1) for s in op.seqs or ()]
        return None if None in needs else sum(n for n in needs if n is not None)
    sequence = step.was.get(op.seq)
    if sequence is None:
        return None
    if op.op == "append":
        return _append_need(step, op.seq, len(op.tokens or ()))
    if op.op == "fork":
        return 1 if sequence.length % facts.block_size and not sequence.swapped else None
    if op.op == "swap_in" and sequence.swapped:
        return facts.blocks(sequence.length) + facts.lookahead
    return None


def _append_need(step: Step, seq: int, tokens: int) -> int | None:
    sequence, facts = step.was.get(seq), step.facts
    if sequence is None or sequence.swapped:
        return None
    new = facts.blocks(sequence.length + tokens) - facts.blocks(sequence.length)
    copied = 1 if step.tail_shared(seq) else 0
    return new + copied + (facts.lookahead if new else 0)


def probe(step: Step) -> Iterator[Finding]:
    """PROBE-001: can_add and can_append say yes exactly when the call then succeeds."""
    said = step.seen.probe
    if said is None or step.seen.outcome == "skipped" or said == step.ok or step.wrong_on_purpose:
        return
    yield step.finding(
        "PROBE-001",
        f"can_{step.op.op} says {step.ok}, as {step.op.op} answers {step.seen.outcome}",
        str(said),
    )


def own_invariants(step: Step) -> Iterator[Finding]:
    """SELF-001."""
    if step.seen.selfcheck:
        yield step.finding("SELF-001", "no broken invariant", "; ".join(step.seen.selfcheck[:3]))

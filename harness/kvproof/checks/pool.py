"""Judges the pool: every block in exactly one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from kvproof.checks.step import Step
from kvproof.oracle.model import Sequence
from kvproof.records import Finding


def conservation(step: Step) -> Iterator[Finding]:
    """POOL-001: free + held + evictable + reserved = capacity, in and out of failure."""
    free = step.seen.free
    if free is None or step.seen.outcome == "skipped":
        return
    held = len(step.held())
    expected = max(0, step.facts.capacity - held - step.facts.watermark)
    if free == expected or (step.facts.lazy and free < expected):
        return
    got = f"{free} free with {held} held of {step.facts.capacity}"
    want = f"{expected} free with {held} held of {step.facts.capacity}"
    yield step.finding("POOL-001", want, got)
    if step.op.op == "free" and step.ok:
        was = step.was.get(step.op.seq)
        if was is not None and (was.swapped or was.computed < was.length):
            state = "swapped out" if was.swapped else f"{was.computed} of {was.length} tokens computed"
            yield step.finding("FREE-004", want, got, f"freed while {state}")
    if not step.model.sequences and not any(step.model.raw_refs.values()):
        yield step.finding("POOL-008", f"all {step.facts.capacity} blocks are free again", f"{free}")


def aliases(step: Step) -> Iterator[Finding]:
    """POOL-002, EVICT-001, PREFIX-005: a block in two tables holds one and the same history."""
    for block, owners in step.owners().items():
        for (seq_a, a), (seq_b, b) in pairwise(owners):
            if seq_a == seq_b:
                continue  # TABLE-002
            first, second = step.model.sequences.get(seq_a), step.model.sequences.get(seq_b)
            if first is None or second is None or first.swapped or second.swapped:
                continue
            yield from _two_owners(step, block, (seq_a, a, first), (seq_b, b, second))
    for block, references in step.model.raw_refs.items():
        if references > 0 and block in step.owners():
            seq = step.owners()[block][0][0]
            yield step.finding(
                "POOL-002", f"block {block} is held by alloc alone", f"also in the table of {seq}"
            )


def _two_owners(
    step: Step, block: int, one: tuple[int, int, Sequence], other: tuple[int, int, Sequence]
) -> Iterator[Finding]:
    (seq_a, a, first), (seq_b, b, second) = one, other
    size = step.facts.block_size
    end = (max(a, b) + 1) * size
    common = min(first.length, second.length, end)
    same = a == b and common > a * size and first.fingerprints[common - 1] == second.fingerprints[common - 1]
    got = f"block {block} is entry {a} of {seq_a} and entry {b} of {seq_b}"
    if not same:
        yield step.finding("POOL-002", "one owner, or one history in both tables", got)
        ends = [
            q.fingerprints[(i + 1) * size - 1]
            for q, i in ((first, a), (second, b))
            if q.computed >= (i + 1) * size
        ]
        if step.model.may_hit.intersection(ends):
            yield step.finding("EVICT-001", "a block that a live sequence refers to is not given away", got)
    elif (
        first.family != second.family
        and step.op.op == "add"
        and step.op.seq in (seq_a, seq_b)
        and (step.model.sequences[step.op.seq].length < end)
    ):
        yield step.finding("PREFIX-005", "only full blocks are shared", f"{got}, which is not full")


def reserved(step: Step) -> Iterator[Finding]:
    """POOL-005: reserved ids are never handed out, copied or written."""
    if not step.facts.reserved:
        return
    named = step.held() | {b for pair in step.seen.copies for b in pair if isinstance(b, int)}
    for block in sorted(named & step.facts.reserved):
        yield step.finding(
            "POOL-005", f"the reserved id {block} is never handed out", "it is in a table or copy"
        )


def reclaim(step: Step) -> Iterator[Finding]:
    """POOL-003: what is reported free can be had, in distinct blocks that nobody holds."""
    if step.op.op != "reclaim" or not step.ok:
        return
    table, asked = step.seen.value["table"], step.seen.value["asked"]
    held = step.held(step.before)
    clash = sorted(set(table) & held)
    if len(set(table)) < min(asked, len(table)):
        twice = sorted(b for b, n in Counter(table).items() if n > 1)
        yield step.finding("POOL-002", "distinct blocks", f"blocks {twice} twice in {table}")
    if clash:
        yield step.finding("POOL-002", "blocks that nobody holds", f"{clash} are held by live sequences")
    if len(set(table)) < asked or clash:
        yield step.finding(
            "POOL-003", f"{asked} blocks reported free can be had", f"{len(set(table) - held)}"
        )


def raw_blocks(step: Step) -> Iterator[Finding]:
    """POOL-002, FREE-001, FREE-002 on the raw pool."""
    op = step.op.op
    if op == "alloc" and step.ok:
        block = int(step.seen.value)
        if step.was_raw.get(block, 0) > 0:
            yield step.finding("POOL-002", "alloc returns a block that nobody holds", f"block {block}, held")
        if block in step.owners(step.before):
            yield step.finding(
                "POOL-002", "alloc returns a block that nobody holds", f"block {block}, in a table"
            )
    if (
        op in ("release", "release_many")
        and step.ok
        and not step.wrong_on_purpose
        and step.seen.free is not None
    ):
        expected = step.facts.capacity - step.facts.watermark - len(step.held())
        if step.seen.free != expected:
            name = "FREE-002" if op == "release_many" else "FREE-001"
            yield step.finding(name, f"{expected} free after {step.op}", f"{step.seen.free}")

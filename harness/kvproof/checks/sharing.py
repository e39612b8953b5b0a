"""Judges sharing: fork, copy-on-write, reference counts, truncation."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.checks.step import Step
from kvproof.records import Finding


def fork(step: Step) -> Iterator[Finding]:
    """SHARE-001: a fork shares every full block and copies at most a partial tail, and says so."""
    if step.op.op != "fork" or not step.ok:
        return
    parent, child = step.op.seq, step.op.child
    sequence = step.model.sequences.get(parent)
    if sequence is None:
        return
    full, used = sequence.length // step.facts.block_size, step.facts.blocks(sequence.length)
    a, b = step.seen.tables.get(parent, ()), step.seen.tables.get(child, ())
    if a[:full] != b[:full]:
        yield step.finding(
            "SHARE-001",
            f"the {full} full blocks of {parent} shared: {list(a[:full])}",
            f"child has {list(b)}",
        )
    if (
        step.has("copies")
        and a[full:used] != b[full:used]  # what is beyond is look-ahead
        and len(b) > full
        and b[full] not in {d for _, d in step.seen.copies}
    ):
        yield step.finding(
            "SHARE-006", f"copies() names the copy into {b[full]}", str(list(step.seen.copies))
        )


def one_writer(step: Step) -> Iterator[Finding]:
    """SHARE-002, PREFIX-006: every block at or past the computed length has one owner."""
    owners = step.owners()
    size = step.facts.block_size
    for seq, sequence, table in step.live():
        if step.facts.lazy or sequence.computed >= sequence.length:
            continue
        for index in range(sequence.computed // size, min(len(table), step.facts.blocks(sequence.length))):
            others = [s for s, _ in owners.get(table[index], ()) if s != seq]
            if not others:
                continue
            other = step.model.sequences.get(others[0])
            family = other is not None and other.family == sequence.family
            got = f"block {table[index]}, entry {index} of {seq}, is also in the table of {others[0]}"
            want = f"a block of its own for position {max(sequence.computed, index * size)} of {seq}"
            if family:
                yield step.finding("SHARE-002", want, got)
            elif step.op.op == "add" and step.op.seq == seq:
                yield step.finding("PREFIX-006", want, got, "shared before it is computed")


def needless_copy(step: Step) -> Iterator[Finding]:
    """SHARE-004: the last reader writes in place."""
    if step.op.op not in ("append", "append_batch") or not step.ok:
        return
    for seq in [step.op.seq] if step.op.op == "append" else list(step.op.seqs or ()):
        before, after, was = step.before.tables.get(seq), step.seen.tables.get(seq), step.was.get(seq)
        if before is None or after is None or was is None or step.tail_shared(seq):
            continue
        index = was.length // step.facts.block_size
        if was.length % step.facts.block_size and index < len(before) and before[index] != after[index]:
            yield step.finding(
                "SHARE-004",
                f"block {before[index]} has one owner: {seq} writes in place",
                f"moved to {after[index]}",
            )


def reported_copies(step: Step) -> Iterator[Finding]:
    """SHARE-006: an entry that changes under computed positions is named by copies()."""
    if not step.has("copies") or not step.ok:
        return
    named = set(step.seen.copies)
    for seq, sequence, table in step.live():
        before, was = step.before.tables.get(seq), step.was.get(seq)
        if before is None or was is None or was.swapped or seq in step.committed:
            continue  # a commit may put an equal block in its place: the contents tell
        for index in range(
            min(len(before), len(table), step.facts.blocks(min(was.computed, sequence.computed)))
        ):
            pair = (before[index], table[index])
            if pair[0] != pair[1] and min(pair) >= 0 and pair not in named:
                yield step.finding(
                    "SHARE-006",
                    f"copies() names {pair}: entry {index} of {seq} moved",
                    str(list(step.seen.copies)),
                )


def reference_counts(step: Step) -> Iterator[Finding]:
    """SHARE-007: the reference count of a block equals a recount over all tables."""
    owners = step.owners()
    for block, count in step.seen.refs.items():
        raw = step.model.raw_refs.get(block, 0)
        expected = len({s for s, _ in owners.get(block, ())}) + raw
        if count != expected:
            want = (
                f"refcount({block}) = {expected}, the owners {sorted({s for s, _ in owners.get(block, ())})}"
            )
            yield step.finding("SHARE-007", want, str(count))
            if step.op.op == "fork":
                yield step.finding("SHARE-001", want, str(count))


def truncation(step: Step) -> Iterator[Finding]:
    """TRUNC-001: truncate drops whole blocks past the new end and nothing else."""
    if step.op.op != "truncate" or not step.ok:
        return
    for seq, _, table in step.live():
        if seq != step.op.seq and step.before.tables.get(seq, table) != table:
            yield step.finding("TRUNC-001", f"table of sequence {seq} as before", str(list(table)))
    if step.seen.free is not None and not step.facts.lazy:
        expected = max(0, step.facts.capacity - len(step.held()) - step.facts.watermark)
        if step.seen.free != expected:
            yield step.finding("TRUNC-001", f"{expected} blocks free afterwards", str(step.seen.free))

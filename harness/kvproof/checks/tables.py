"""Judges block tables: length, entries, and who may change them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvproof.checks.step import Step
from kvproof.records import Finding

_CHANGING = frozenset({"append", "append_batch", "truncate", "swap_out", "swap_in", "add", "fork"})


def targets(step: Step) -> set[int]:
    """Sequences whose table this operation may change: a commit may merge duplicates, or catch up."""
    if step.op.op not in _CHANGING or not step.ok:
        return step.committed
    return {s for s in (step.op.seq, step.op.child, *(step.op.seqs or ())) if s is not None}


def lengths(step: Step) -> Iterator[Finding]:
    """TABLE-001, TABLE-006: ceil(length / block_size) entries, and at most the declared look-ahead."""
    facts = step.facts
    for seq in step.model.sequences:
        if seq not in step.seen.tables:
            yield step.finding("TABLE-001", f"a table of {seq}, which is alive", "UnknownSequence")
    for seq, sequence, table in step.live():
        need = facts.blocks(sequence.length)
        least = facts.blocks(sequence.computed) if facts.lazy else need
        got = f"{len(table)} entries: {list(table)}"
        want = f"{need} entries for {sequence.length} tokens in blocks of {facts.block_size}"
        if len(table) < least:
            yield step.finding("TABLE-001", want, got, f"table of sequence {seq}")
        elif len(table) > need + facts.lookahead:
            name = "TABLE-006" if facts.lookahead else "TABLE-001"
            yield step.finding(name, want, got, f"table of sequence {seq}")
            if name == "TABLE-001" and step.op.op != "truncate":
                yield step.finding("TABLE-006", want, got, f"table of sequence {seq}")
        if (
            step.op.op == "truncate"
            and step.op.seq == seq
            and step.ok
            and len(table) > need + facts.lookahead
        ):
            yield step.finding("TRUNC-001", want, got, f"table of sequence {seq}")
        if step.op.op == "append" and step.op.seq == seq and step.ok:
            yield from _no_block_needed(step, seq, table)
    was = step.was.get(step.op.seq)
    if step.op.op == "append" and step.ok and was is not None and was.swapped:
        yield step.finding("SWAP-001", f"Refused: {step.op.seq} is swapped out", "the append succeeded")
    for seq, sequence in step.model.sequences.items():
        if sequence.swapped and step.seen.tables.get(seq):
            yield step.finding(
                "SWAP-001", f"an empty table while {seq} is swapped out", str(list(step.seen.tables[seq]))
            )


def _no_block_needed(step: Step, seq: int, table: tuple[int, ...]) -> Iterator[Finding]:
    was = step.was.get(seq)
    if was is None or step.facts.lazy or step.tail_shared(seq):
        return
    after = step.model.sequences[seq]
    if step.facts.blocks(was.length) == step.facts.blocks(after.length):
        before = step.before.tables.get(seq, ())
        grown, free = len(table) - len(before), step.free_before()
        ahead = grown if step.facts.lookahead and free is not None else 0  # `lengths` bounds it
        if grown > ahead or step.seen.free != (free - ahead if free is not None else None):
            yield step.finding(
                "POOL-006",
                f"no new block for {after.length - was.length} tokens that fit the last one",
                f"table {list(before)} -> {list(table)}, free {step.free_before()} -> {step.seen.free}",
            )


def entries(step: Step) -> Iterator[Finding]:
    """TABLE-002, PREFIX-010: distinct ids, no more of them than the pool has; BadSlots."""
    if step.seen.outcome == "BadSlots":
        yield step.finding("TABLE-002", "the slots of a block are consecutive", step.seen.detail)
    size = step.facts.block_size
    for seq, sequence, table in step.live():
        kept = [b for b in table if b >= 0]
        twice = sorted(b for b, n in Counter(kept).items() if n > 1)
        if twice:
            yield step.finding(
                "TABLE-002",
                "distinct blocks",
                f"blocks {twice} twice in {list(table)}",
                f"table of sequence {seq}",
            )
            if (
                step.op.op == "add"
                and step.op.seq == seq
                and table.index(twice[0]) < sequence.computed // size
            ):
                yield step.finding(
                    "PREFIX-010",
                    "matched blocks are held before others are evicted",
                    f"block {twice[0]} is matched and handed out again in {list(table)}",
                )
        if len(kept) < len(table) and not step.has("window"):
            yield step.finding(
                "TABLE-002", "block ids, none negative", str(list(table)), f"table of sequence {seq}"
            )
    ids = set(step.owners())
    if len(ids) > step.facts.capacity:
        yield step.finding("TABLE-002", f"at most {step.facts.capacity} blocks", f"{len(ids)} in tables")


def stability(step: Step) -> Iterator[Finding]:
    """TABLE-003: a live table changes only by its own calls, or by a declared window."""
    may_change = targets(step)
    for seq, sequence, table in step.live():
        before = step.before.tables.get(seq)
        was = step.was.get(seq)
        if before is None or was is None or was.swapped:
            continue
        if seq not in may_change:
            if table != before and not (
                step.has("window") or (step.facts.lazy and table[: len(before)] == before)
            ):
                copied = {d for _, d in step.seen.copies} if step.has("copies") else set()
                moved = {b for a, b in zip(before, table, strict=False) if a != b}
                if not moved or not moved <= copied:
                    yield step.finding(
                        "TABLE-003",
                        f"table of sequence {seq} as before: {list(before)}",
                        f"{list(table)} after {step.op}",
                    )
            continue
        if step.op.op in ("append", "append_batch"):
            writable = was.length // step.facts.block_size  # full blocks before it are never touched
            if table[:writable] != before[:writable] and not step.has("window"):
                yield step.finding(
                    "TABLE-003", f"the full blocks of {seq} stay: {list(before[:writable])}", str(list(table))
                )
        elif step.op.op == "truncate":
            kept = sequence.length // step.facts.block_size
            if table[:kept] != before[:kept]:
                yield step.finding("TRUNC-001", f"kept blocks {list(before[:kept])}", str(list(table)))


def callers_copy(step: Step) -> Iterator[Finding]:
    """TABLE-005: what a caller holds is not rewritten later."""
    for seq in step.seen.stale:
        yield step.finding(
            "TABLE-005",
            f"the table of {seq} that was returned earlier stays as it was",
            f"it was rewritten by {step.op}",
        )
    if step.ok and (step.op.args or {}).get("scribble"):
        before = step.before.tables.get(step.op.seq)
        if before is not None and step.seen.value != before:
            yield step.finding(
                "TABLE-005",
                f"table({step.op.seq}) as before, {list(before)}, whatever a caller writes into its own",
                str(list(step.seen.value)),
            )

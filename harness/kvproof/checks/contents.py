"""Judges contents: every live sequence, read back through its table, is its own history."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.checks.step import Step
from kvproof.oracle.model import Sequence
from kvproof.records import DROPPED, Finding

GUARD = "PREFIX-016"
MOST_BITS = 3
"""Tokens that differ in so few bits are said to."""


def read_back(step: Step) -> Iterator[Finding]:
    """The KV that a sequence reads is the KV of its whole history: PREFIX-*, EVICT-002, SHARE-*, SWAP-001."""
    for seq, reads in step.seen.reads.items():
        sequence = step.model.sequences.get(seq)
        if sequence is None or sequence.swapped:
            continue
        for position, serial in enumerate(reads):
            if position >= sequence.length or serial == DROPPED:
                continue
            expected, got = sequence.fingerprints[position], step.model.print_of(serial)
            if got != expected and not _known(step, seq, position, serial):
                yield from _wrong(step, seq, sequence, position, got)
                break


def _known(step: Step, seq: int, position: int, serial: int) -> bool:
    """It was as wrong before this operation, and named then."""
    reads, was = step.before.reads.get(seq, ()), step.was.get(seq)
    return (
        was is not None
        and position < min(len(reads), was.length)
        and reads[position] == serial
        and was.fingerprints[position] == step.model.sequences[seq].fingerprints[position]
    )


def _wrong(step: Step, seq: int, sequence: Sequence, position: int, got: int | None) -> Iterator[Finding]:
    table = step.seen.tables.get(seq, ())
    index, offset = divmod(position, step.facts.block_size)
    block = table[index] if index < len(table) else None
    want = f"position {position} of {seq} reads the KV of {_tail(step, sequence.fingerprints[position])}"
    found = "a slot that was never written" if got is None else f"the KV of {_tail(step, got)}"
    if got is not None:
        found += _difference(step, sequence.fingerprints[position], got)
    found += f" (block {block}, offset {offset})"
    names = list(_names(step, seq, sequence, position, got, block, offset))
    if step.has("data"):
        names.append("DATA-001")
    for name in names:
        yield step.finding(name, want, found, slot=None if block is None else (block, offset))


def _names(
    step: Step, seq: int, sequence: Sequence, position: int, got: int | None, block: int | None, offset: int
) -> Iterator[str]:
    op = step.op.op
    if op == "add" and step.op.seq == seq:
        yield from _wrong_hit(step, sequence, position, got, block, offset)
    elif op in ("swap_in", "swap_out"):
        yield "SWAP-001"
    elif op == "fork" and step.op.child == seq:
        yield "SHARE-001"
    elif op == "truncate":
        yield "TRUNC-001"
    else:
        yield from _overwritten(step, seq, sequence, position, got, block)


def _wrong_hit(
    step: Step, sequence: Sequence, position: int, got: int | None, block: int | None, offset: int
) -> Iterator[str]:
    """Which rule a wrong prefix hit breaks, from what the matched block holds."""
    expected = sequence.fingerprints[position]
    if isinstance(block, int) and expected in step.model.ever.get((block, offset), set()):
        yield "EVICT-002"  # it was there once and has been overwritten
        if _matches_later(step, sequence, position):
            yield "PREFIX-003"
        return
    if got is None or not _same_place(step, got, position):
        if _matches_later(step, sequence, position):
            yield "PREFIX-003"  # a hole in front of a block that does match
            return
        if got is None:
            yield "PREFIX-006"
            if expected in step.model.drafts:
                yield "PREFIX-013"
            return
    names = list(_foreign(step, sequence, position, got))
    yield from names
    if f"KVP-{GUARD}" in step.case.aim and step.facts.guard is not None and names != ["PREFIX-007"]:
        yield GUARD  # what it says it is sure of is not what it looks at


def _matches_later(step: Step, sequence: Sequence, position: int) -> bool:
    """A full block behind this position holds its own history, whether the hit counts it or not."""
    size, table = step.facts.block_size, step.seen.tables.get(step.op.seq, ())
    full = range(position // size + 1, min(len(table), (len(sequence.fingerprints) - 1) // size))
    ends = [(table[i], sequence.fingerprints[(i + 1) * size - 1]) for i in full]
    return any(step.model.last.get((block, size - 1)) == end for block, end in ends)


def _same_place(step: Step, got: int, position: int) -> bool:
    return len(step.model.prints.back(got)) - 2 == position  # the root is no position


def _foreign(step: Step, sequence: Sequence, position: int, got: int) -> Iterator[str]:
    """The block holds another history: which part of it differs."""
    size = step.facts.block_size
    here = step.model.prints.back(got)
    mine = step.model.prints.back(sequence.fingerprints[position])
    if [token for token, _ in here[1:]] == [token for token, _ in mine[1:]]:
        yield "PREFIX-007"  # the tokens are equal, so a key differs
        return
    reads = step.seen.reads.get(step.op.seq, ())
    first = position // size * size
    last = min(first + size, len(reads))
    theirs = [step.model.print_of(reads[p]) for p in range(first, last)]
    tokens = [step.model.prints.back(t)[-1][0] if t is not None else None for t in theirs]
    own = [step.model.prints.back(p)[-1][0] for p in sequence.fingerprints[first:last]]
    if tokens == own:
        yield "PREFIX-002"  # its own tokens are equal, those before it are not
    elif len(own) > 1 and all(a != b for a, b in zip(tokens, own, strict=True)):
        yield "PREFIX-008"  # nothing in common but a key
    else:
        yield "PREFIX-001"


def _overwritten(
    step: Step, seq: int, sequence: Sequence, position: int, got: int | None, block: int | None
) -> Iterator[str]:
    """It was right before: somebody wrote into it, or its own copy was not made."""
    before = step.before.tables.get(seq, ())
    index = position // step.facts.block_size
    if index < len(before) and before[index] != block:
        yield "SHARE-006"
        yield "SHARE-002"
        return
    writers = {s for _, b, _, s, _ in step.seen.writes if b == block} - {seq}
    families = {step.model.sequences[s].family for s in writers if s in step.model.sequences}
    if sequence.family in families:
        yield "SHARE-002"
    elif writers:
        yield "POOL-002"
        full = (index + 1) * step.facts.block_size
        if full <= sequence.length and sequence.fingerprints[full - 1] in step.model.may_hit:
            yield "EVICT-001"
    elif got is None:
        yield "PREFIX-006"
    else:
        yield "SHARE-006" if step.seen.copies else "POOL-002"


def _difference(step: Step, expected: int, got: int) -> str:
    """Where two histories of equal length part, for people."""
    mine, theirs = (step.model.prints.back(history)[1:] for history in (expected, got))
    if len(mine) != len(theirs):
        return ""
    apart = [i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a[0] != b[0]]
    if not apart:
        return ""
    at = apart[0]
    a, b = mine[at][0], theirs[at][0]
    said = f", which differs in {len(apart)} of {len(mine)} tokens, the first at {at}: {b}, not {a}"
    if isinstance(a, int) and isinstance(b, int) and (a ^ b).bit_count() <= MOST_BITS:
        bits = [str(bit) for bit in range((a ^ b).bit_length()) if (a ^ b) >> bit & 1]
        said += f" (bit{'s' * (len(bits) > 1)} {', '.join(bits)})"
    return said


def _tail(step: Step, history: int) -> str:
    """The last tokens of a history, for people."""
    path = step.model.prints.back(history)
    domain = path[0][1] or ()
    tokens = [f"{token}" if tag is None else f"{token}{tag}" for token, tag in path[1:]]
    shown = ("... " if len(tokens) > 12 else "") + " ".join(tokens[-12:])
    keys = f" under {dict(domain)}" if domain else ""  # type: ignore[call-overload]
    return f"[{shown}]{keys}"

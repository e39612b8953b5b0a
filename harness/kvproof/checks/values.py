"""Judges what the calls returned: hit lengths, batch tensors, slots, codec, and stated expectations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvproof.checks.answers import blocks_needed, room_before
from kvproof.checks.step import Step
from kvproof.records import Finding


def hit_length(step: Step) -> Iterator[Finding]:
    """PREFIX-001, -004, -005, -007, -013, -014: n of add against the committed history."""
    if step.op.op != "add" or not step.ok or not step.op.tokens or step.wrong_on_purpose:
        return
    n, size, length = int(step.seen.value), step.facts.block_size, len(step.op.tokens)
    if not 0 <= n < length:
        yield step.finding("PREFIX-004", f"0 <= n < {length}", f"n = {n}")
        return
    if n % size and not step.has("partial"):
        yield step.finding("PREFIX-004", f"a multiple of the block size {size}", f"n = {n}")
        yield step.finding("PREFIX-005", "only full blocks are shared", f"n = {n} with blocks of {size}")
    matched = step.seen.matched
    # The source of a copied part must be kept too: without room for it the whole blocks are matched.
    if matched is not None and n != matched and not (step.has("partial") and n == matched // size * size):
        yield step.finding("PREFIX-001", f"match said {matched}, so add returns it", f"n = {n}")
    sequence = step.model.sequences[step.op.seq]
    may = step.model.expected_hit(sequence.fingerprints, step.model.may_hit)
    must = step.model.expected_hit(sequence.fingerprints, step.model.must_hit)
    if n > may and not step.has("partial"):
        past = set(sequence.fingerprints[may:n])
        if past & step.model.forgotten:
            yield step.finding("PREFIX-014", f"n <= {may}: a reset has forgotten the rest", f"n = {n}")
        if past & step.model.drafts:
            yield step.finding("PREFIX-013", f"n <= {may}: the rest was truncated", f"n = {n}")
    if not step.has("prefix"):
        return
    if n < must and step.model.roomy:
        name = "PREFIX-007" if step.op.keys else "PREFIX-001"
        yield step.finding(
            name, f"n = {must}: the same history is committed and nothing had to go", f"n = {n}"
        )


def expectations(step: Step) -> Iterator[Finding]:
    """The case's own `expect` fields, against its aims."""
    late = _late(step)
    wanted_of_table = late if step.facts.lazy else step.op.expect
    for name, wanted in {**(step.op.expect or {}), **(late or {})}.items():
        if name in _OF_TABLES and name not in (wanted_of_table or {}):
            continue  # a lazy table shows them after the commit
        got = _observed(step, name)
        if step.seen.outcome == "skipped" or got in _allowed(step, name, wanted):
            continue
        if name == "outcome" and _legal(step, wanted):
            continue
        for aim in step.case.aim:
            yield step.finding(aim[4:], f"{step.op}: {name} = {wanted}", f"{name} = {got}")


_OF_TABLES = ("new_blocks", "table_len")


def _late(step: Step) -> dict[str, Any] | None:
    """What the operation before this commit expected of a lazy table."""
    if not (step.facts.lazy and step.op.op == "commit" and step.ok and step.index):
        return None
    op = step.case.history[step.index - 1]
    if op.seq != step.op.seq or step.before.outcome != "ok":
        return None
    return {name: value for name, value in (op.expect or {}).items() if name in _OF_TABLES}


def _observed(step: Step, name: str) -> Any:
    table = step.seen.tables.get(step.op.seq, ())
    if name == "table_len":
        return len(table)
    if name == "new_blocks":
        others = {s: t for s, t in step.before.tables.items() if s != step.op.seq}
        return len(set(table) - {b for t in others.values() for b in t})
    if isinstance(step.seen.value, dict) and name in step.seen.value:
        return step.seen.value[name]
    return {"outcome": step.seen.outcome, "value": step.seen.value, "free": step.seen.free}.get(name)


def _allowed(step: Step, name: str, wanted: Any) -> list[Any]:
    if name in _OF_TABLES:
        return list(range(wanted, wanted + step.facts.lookahead + 1))
    return wanted if isinstance(wanted, list) and name == "outcome" else [wanted]


def _legal(step: Step, wanted: Any) -> bool:
    """An outcome that the scene did not lead to here, yet a right one for this subject."""
    op, outcomes = step.op.op, wanted if isinstance(wanted, list) else [wanted]
    was = step.was.get(step.op.seq)
    if step.ok and "OutOfBlocks" in outcomes:  # look-ahead, watermark or an eager fork left room
        fresh = step.held() - step.held(step.before)
        return len(fresh) <= step.facts.capacity - len(step.held(step.before))
    if step.ok and outcomes == ["Refused"]:  # not swapped out: a full host tier has refused it
        return op == "append" and was is not None and not was.swapped
    if step.seen.outcome not in ("OutOfBlocks", "Refused"):
        return False
    if op == "swap_out" and was is not None:
        return step.model.out + step.facts.blocks(was.length) > step.model.fitted
    need = blocks_needed(step) if step.facts.lookahead else None
    return need is not None and need > room_before(step)


def _rows(step: Step) -> list[list[int]]:
    return [list(step.seen.tables[s]) for s in step.op.seqs or ()]


def _lens(step: Step) -> list[int]:
    return [step.model.sequences[s].length for s in step.op.seqs or ()]


def batch(step: Step) -> Iterator[Finding]:
    """BATCH-001 to BATCH-004: row i is the table of seqs[i], int32, padded to the longest."""
    if step.op.op != "batch" or not step.ok:
        return
    got, rows, seqs = step.seen.value, _rows(step), list(step.op.seqs or ())
    widest = max((len(r) for r in rows), default=0)
    want = [r + [got["pad"]] * (widest - len(r)) for r in rows]
    if not seqs:
        if got["table"] not in ([], [[]]) or got["num_blocks"] != [] or got["seq_lens"] != []:
            yield step.finding("BATCH-003", "empty arrays for an empty batch", str(got["table"])[:80])
        return
    if got["dtype"] != "int32":
        yield step.finding("BATCH-001", "int32", str(got["dtype"]))
    if got["num_blocks"] != [len(r) for r in rows]:
        yield step.finding("BATCH-001", f"num_blocks {[len(r) for r in rows]}", f"{got['num_blocks']}")
    if got["seq_lens"] != _lens(step):
        yield step.finding("BATCH-001", f"seq_lens in tokens {_lens(step)}", f"{got['seq_lens']}")
    if got["table"] == want:
        return
    for i, (have, need) in enumerate(zip(got["table"], want, strict=False)):
        if have == need:
            continue
        used = len(rows[i])
        if have[:used] == rows[i] and len(have) >= used and set(have[used:]) != {got["pad"]}:
            names = ["BATCH-002", "BATCH-001"]  # what is left of a former owner, or a wrong pad
        elif sorted(map(tuple, got["table"])) == sorted(map(tuple, want)):
            names = ["BATCH-003"]
        elif len(have) == len(need) or have[:used] != rows[i]:
            names = ["BATCH-004", "BATCH-001"]
        else:
            names = ["BATCH-001"]
        for name in names:
            yield step.finding(name, f"row {i} of batch({seqs}): {need}", f"{have}")
        return
    yield step.finding("BATCH-003", f"{len(seqs)} rows for batch({seqs})", f"{len(got['table'])} rows")


def csr(step: Step) -> Iterator[Finding]:
    """BATCH-005: the ragged form says what the padded one does."""
    if step.op.op != "csr" or not step.ok:
        return
    got, rows, size = step.seen.value, _rows(step), step.facts.block_size
    indptr = [0]
    for row in rows:
        indptr.append(indptr[-1] + len(row))
    want = {
        "indptr": indptr,
        "indices": [b for r in rows for b in r],
        "last_block_len": [(n - 1) % size + 1 for n in _lens(step)],
    }
    for name, value in want.items():
        if got[name] != value:
            yield step.finding("BATCH-005", f"{name} = {value}", f"{got[name]}")


def slots(step: Step) -> Iterator[Finding]:
    """SLOT-001, STEP-001: table[position div block_size] * block_size + position mod block_size."""
    size = step.facts.block_size
    if step.op.op == "slots" and step.ok and not step.wrong_on_purpose:
        table = step.seen.tables[step.op.seq]
        if len(table) * size < (step.op.hi or 0):
            return  # TABLE-001
        want = tuple(table[p // size] * size + p % size for p in range(step.op.lo or 0, step.op.hi or 0))
        if step.seen.value != want:
            yield step.finding("SLOT-001", f"slots {list(want)}", f"{list(step.seen.value)}")
    if step.op.op == "append_batch" and step.ok and not step.wrong_on_purpose:
        ends = [(step.seen.tables[s], step.model.sequences[s].length - 1) for s in step.op.seqs or ()]
        want = tuple(t[p // size] * size + p % size if p // size < len(t) else -1 for t, p in ends)
        got = step.seen.value
        if step.facts.lazy and len(got) == len(want):  # what its tables do not name yet is not judged
            got = tuple(-1 if slot == -1 else g for g, slot in zip(got, want, strict=True))
        if got != want:
            yield step.finding("STEP-001", f"slots {list(want)}", f"{list(step.seen.value)}")


def wire(step: Step) -> Iterator[Finding]:
    """BATCH-004: the worker sees the tokens that are to be computed next."""
    if step.op.op == "wire" and step.ok:
        sequence = step.model.sequences[step.op.seq]
        want = tuple(sequence.tokens[sequence.computed :])
        if step.seen.value != want:
            yield step.finding("BATCH-004", f"tokens {list(want)}", f"{list(step.seen.value)}")


def codec(step: Step) -> Iterator[Finding]:
    """WIRE-001: tables survive, damage is refused, and the form is compact."""
    if step.op.op != "codec" or not step.ok or step.wrong_on_purpose:
        return
    seqs = list(step.op.seqs or ())
    want = [[s, n, r] for s, n, r in zip(seqs, _lens(step), _rows(step), strict=True)]
    if step.seen.value["rows"] != want:
        yield step.finding("WIRE-001", f"rows {want}", f"{step.seen.value['rows']}")
    bound = 4 * sum(len(r) for r in _rows(step)) + 32 * len(seqs) + 64
    if step.seen.value["size"] > bound:
        yield step.finding("WIRE-001", f"at most {bound} bytes", f"{step.seen.value['size']}")

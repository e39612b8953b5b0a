"""What each operation of a history does to the subject: one small function an operation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from kvproof.records import Case, Observation, Operation
from kvproof.subjects.drive import Clock, Driver, Live, Nonsense, Skip, integer, integers

FRESH = 1_000_000
"""Ids and tokens from here on are the driver's own; histories use smaller ones."""


def _add(d: Driver, op: Operation) -> int:
    tokens = list(op.tokens or ())
    keys = {} if op.keys is None else {"keys": op.keys}
    n = integer(d.manager.add(op.seq, tokens, **keys), "add")
    d.live[op.seq] = Live(len(tokens), computed=max(0, min(n, len(tokens))))
    return n


def _append(d: Driver, op: Operation) -> None:
    live = d.need(op, op.seq)
    d.manager.append(op.seq, list(op.tokens or ()))
    if live:
        live.length += len(op.tokens or ())


def _append_batch(d: Driver, op: Operation) -> tuple[int, ...]:
    seqs, tokens = list(op.seqs or ()), list(op.tokens or ())
    states = [d.need(op, s) for s in seqs]
    slots = integers(d.manager.append_batch(seqs, tokens), "append_batch")
    for live in states:
        if live:
            live.length += 1
    return slots


def _commit(d: Driver, op: Operation) -> int:
    """Writes what is newly computed through the table, then tells the subject."""
    live = d.need(op, op.seq)
    target = op.computed if op.computed is not None else (live.length if live else 0)
    if live is None:
        d.manager.commit(op.seq, target)
        return target
    target = min(max(target, live.computed), live.length)
    if d.lazy:
        d.manager.commit(op.seq, target)
    lo, live.computed = live.computed, target
    d.write(op.seq, lo, target)
    if not d.lazy:
        d.manager.commit(op.seq, target)
    return target


def _commit_batch(d: Driver, op: Operation) -> None:
    """A decode step's commit: one call if the subject has it, else one for each sequence."""
    seqs = [s for s in op.seqs or () if s in d.live and not d.live[s].swapped]
    if d.lazy:
        _tell_batch(d, seqs)
    for s in seqs:
        live = d.live[s]
        d.write(s, live.computed, live.length)
        live.computed = live.length
    if not d.lazy:
        _tell_batch(d, seqs)


def _tell_batch(d: Driver, seqs: list[Any]) -> None:
    if hasattr(d.manager, "commit_batch"):
        d.manager.commit_batch(seqs)
    else:
        for s in seqs:
            d.manager.commit(s, d.live[s].length)


def _free(d: Driver, op: Operation) -> None:
    d.need(op, op.seq)
    d.manager.free(op.seq)
    d.live.pop(op.seq, None)


def _fork(d: Driver, op: Operation) -> None:
    live = d.need(op, op.seq)
    d.manager.fork(op.seq, op.child)
    if live:
        d.live[op.child] = Live(live.length, live.computed)
        d.tables[op.child] = d.tables.get(op.seq, ())


def _truncate(d: Driver, op: Operation) -> None:
    live = d.need(op, op.seq)
    if live and op.length is not None and op.length > live.length:
        raise Skip  # it never grew so long
    d.manager.truncate(op.seq, op.length)
    if live and op.length is not None:
        live.length = op.length
        live.computed = min(live.computed, op.length)


def _swap_out(d: Driver, op: Operation) -> None:
    live = d.need(op, op.seq)
    d.manager.swap_out(op.seq)
    if live:
        live.swapped = True


def _swap_in(d: Driver, op: Operation) -> None:
    live = d.need(op, op.seq)
    if live and not live.swapped:
        raise Skip  # a full host tier has refused it
    d.manager.swap_in(op.seq)
    if live:
        live.swapped = False


def _table(d: Driver, op: Operation) -> tuple[int, ...]:
    d.need(op, op.seq)
    return d.read_table(op.seq)


def _match(d: Driver, op: Operation) -> int:
    keys = {} if op.keys is None else {"keys": op.keys}
    return integer(d.manager.match(list(op.tokens or ()), **keys), "match")


def _block_keys(d: Driver, op: Operation) -> list[str]:
    keys = d.manager.block_keys(list(op.tokens or ()), op.keys)
    if not all(isinstance(k, bytes) for k in keys):
        raise Nonsense(f"block_keys returned {keys!r:.80}; a list of bytes is needed")
    return [k.hex() for k in keys]


def plain_rows(array: Any) -> Any:
    """Nested lists of ints from a numpy array, a tensor or nested lists."""
    return (
        array.tolist()
        if hasattr(array, "tolist")
        else [list(r) if hasattr(r, "__iter__") else r for r in array]
    )


def _live_of(d: Driver, op: Operation) -> list[Any]:
    seqs = list(op.seqs or ())
    for s in seqs:
        d.need(op, s)
    return seqs


def _batch(d: Driver, op: Operation) -> dict[str, Any]:
    table, blocks, lens = d.manager.batch(_live_of(d, op))
    return {
        "dtype": str(getattr(table, "dtype", type(table).__name__)).replace("torch.", ""),
        "shape": list(getattr(table, "shape", ())),
        "table": plain_rows(table),
        "num_blocks": plain_rows(blocks),
        "seq_lens": plain_rows(lens),
        "pad": integer(getattr(d.manager, "pad", -1), "pad"),
    }


def _csr(d: Driver, op: Operation) -> dict[str, Any]:
    indptr, indices, last = d.manager.csr(_live_of(d, op))
    return {"indptr": plain_rows(indptr), "indices": plain_rows(indices), "last_block_len": plain_rows(last)}


def _slots(d: Driver, op: Operation) -> tuple[int, ...]:
    live = d.need(op, op.seq)
    if live and op.hi is not None and op.hi > live.length and not op.args:
        raise Skip  # it never grew so long
    return integers(d.manager.slots(op.seq, op.lo, op.hi), "slots")


def _wire(d: Driver, op: Operation) -> tuple[int, ...]:
    d.need(op, op.seq)
    return integers(d.manager.wire(op.seq), "wire")


def _codec(d: Driver, op: Operation) -> dict[str, Any]:
    """Encode, damage as told (`flip` a byte, `cut` at a length, both as fractions), decode."""
    data = bytes(d.manager.encode_tables(_live_of(d, op)))
    size, args = len(data), op.args or {}
    if "flip" in args:
        at = min(int(args["flip"] * size), size - 1)
        data = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    if "cut" in args:
        data = data[: int(args["cut"] * size)]
    rows = d.manager.decode_tables(data)
    return {"size": size, "rows": [[s, n, list(integers(t, "decode_tables"))] for s, n, t in rows]}


def _reset(d: Driver, op: Operation) -> bool:
    return bool(d.manager.reset_prefix_cache())


def _alloc(d: Driver, op: Operation) -> int:
    block = integer(d.manager.alloc(), "alloc")
    d.raw.append(block)
    return block


def _raw(d: Driver, op: Operation) -> list[int]:
    if any(i >= len(d.raw) for i in op.blocks or ()):
        raise Skip  # it was never allocated
    return [d.raw[i] for i in op.blocks or ()]


def _retain(d: Driver, op: Operation) -> list[int]:
    blocks = _raw(d, op)
    for b in blocks:
        d.manager.retain(b)
    return blocks


def _release(d: Driver, op: Operation) -> list[int]:
    blocks = _raw(d, op)
    for b in blocks:
        d.manager.release(b)
    return blocks


def _release_many(d: Driver, op: Operation) -> list[int]:
    """One batch; one by one for a subject without `release_many`."""
    blocks = _raw(d, op)
    if hasattr(d.manager, "release_many"):
        d.manager.release_many(blocks)
    else:
        for b in blocks:
            d.manager.release(b)
    return blocks


def _sizing(d: Driver, op: Operation) -> int:
    return integer(d.manager.blocks_for(**(op.args or {})), "blocks_for")


def _reclaim(d: Driver, op: Operation) -> dict[str, Any]:
    """Ask for exactly what is reported free, less the look-ahead, as one fresh sequence; give it back."""
    asked = integer(d.manager.free_blocks(), "free_blocks") - int(getattr(d.manager, "lookahead", 0))
    if asked <= 0:
        return {"asked": asked, "table": []}
    seq = FRESH + len(d.writes) + d.serial
    tokens = [FRESH + seq + i for i in range(asked * d.block_size)]
    d.manager.add(seq, tokens)
    if d.lazy:
        d.manager.commit(seq, len(tokens))
    table = list(d.read_table(seq))
    d.manager.free(seq)
    return {"asked": asked, "table": table}


CALLS: dict[str, Callable[[Driver, Operation], Any]] = {
    "add": _add,
    "append": _append,
    "append_batch": _append_batch,
    "commit": _commit,
    "commit_batch": _commit_batch,
    "free": _free,
    "fork": _fork,
    "truncate": _truncate,
    "swap_out": _swap_out,
    "swap_in": _swap_in,
    "table": _table,
    "match": _match,
    "block_keys": _block_keys,
    "batch": _batch,
    "csr": _csr,
    "slots": _slots,
    "wire": _wire,
    "codec": _codec,
    "reset": _reset,
    "alloc": _alloc,
    "retain": _retain,
    "release": _release,
    "release_many": _release_many,
    "sizing": _sizing,
    "reclaim": _reclaim,
}


def call(driver: Driver, op: Operation) -> Any:
    return CALLS[op.op](driver, op)


@contextlib.contextmanager
def no_clock(step: int) -> Iterator[None]:
    yield


def drive(manager: Any, case: Case, clock: Clock = no_clock) -> Iterator[Observation]:
    """Observations of the case's operations, in order; stops after an `error`."""
    driver = Driver(manager, case, clock, call)
    for step, op in enumerate(case.history):
        seen = driver.apply(step, op)
        yield seen
        if seen.outcome == "error":
            return

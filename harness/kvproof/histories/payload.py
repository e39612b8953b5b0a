"""The tensors of a kernel's call, as data: what each sequence holds, where it lies, what is asked for.

Parent and worker make them alike from a case. All arrays are float32 with values that the dtype of the
case holds exactly. Coded payloads: the key of a slot is a random pattern of +1 and -1, its value spells
the slot's id in signs, so that the answer to a query names the slot that was read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.oracle.floats import Floats, rounded, ties
from kvproof.records import Case, Operation, Setting

Integers = NDArray[np.int64]

STRENGTH = 8.0
"""A coded query is so many times the key it asks for: the next best key weighs at most exp(-16)."""
LEVER = 16.0
"""First entry of a query whose scores follow a trend or a shift."""
TREND_SCALE = 0.125
SCALE = 1.15
"""The scale of random payloads times sqrt(D): neither D^-0.5, which may be wired in, nor a power of two."""
MOST_PAGES = 320
"""Blocks of a sequence that probes of "pages" ask for; of more, every second, third and so on."""
UNSEEN = 3.0
"""Unused slots hold numbers so much larger than the live ones."""
TRENDS = {"rising": 40.0, "falling": 40.0, "spike": 6.0}
"""How far the scores of a payload rise or fall in all."""


@dataclass
class Inputs:
    """The tensors of one call; a row is an entry of the batch."""

    setting: Setting
    num_blocks: int
    block_size: int
    keys: list[Floats]
    """Of each sequence: [length, kv_heads, dim]."""
    values: list[Floats]
    tables: list[list[int]]
    """Blocks of each sequence."""
    rows: list[int]
    """Sequence of each row."""
    lens: list[int]
    """What the row's seq_len says."""
    table: NDArray[np.int32]
    query: Floats
    """[rows or query tokens, query_heads, dim]."""
    ends: NDArray[np.int32] | None
    """cu_seqlens_q."""
    targets: Integers
    """Position that each row and query head asks for; empty for other than coded payloads."""
    scale: float

    @property
    def first(self) -> int:
        """The first position that a row sees."""
        return self.setting.part[0] if self.setting.part else 0

    def slopes(self) -> Floats | None:
        """Slopes of ALiBi for each query head."""
        heads = self.setting.kv_heads * self.setting.group
        steepest = self.setting.features.get("alibi")
        return None if steepest is None else _slopes(steepest, heads)

    def pool(self, which: str) -> Floats:
        """The whole cache "k" or "v": [blocks, block_size, kv_heads, dim]."""
        pool = self._unused(which, np.arange(self.num_blocks))
        self._fill(which, pool, {b: b for b in range(self.num_blocks)})
        return pool

    def looked_at(self, which: str) -> tuple[Sequence[int], Floats]:
        """Blocks of the cache "k" or "v" that are compared after a write, and what they hold before it."""
        return self.backed(which) if self.setting.sparse else (range(self.num_blocks), self.pool(which))

    def backed(self, which: str) -> tuple[list[int], Floats]:
        """The blocks in use, and what they hold: for a pool larger than memory."""
        written = {slot // self.block_size for slot in self.setting.slots if slot >= 0}
        copied = {b for pair in self.setting.pairs for b in pair}
        used = sorted({b for table in self.tables for b in table} | written | copied)
        pool = self._unused(which, np.array(used))
        self._fill(which, pool, {b: i for i, b in enumerate(used)})
        return used, pool

    def _unused(self, which: str, blocks: Integers) -> Floats:
        s = self.setting
        shape = (len(blocks), self.block_size, s.kv_heads, s.head_size)
        if s.poison and which in s.poisoned:
            return np.full(shape, float(s.poison), np.float32)
        if s.payload == "coded":
            slots = blocks[:, None] * self.block_size + np.arange(self.block_size)
            return coded(which, slots, s)
        rng = np.random.default_rng((s.seed, 7, which == "k"))
        return rounded(s.dtype, UNSEEN * rng.standard_normal(shape, np.float32))

    def _fill(self, which: str, pool: Floats, place: dict[int, int]) -> None:
        held = self.keys if which == "k" else self.values
        for table, tokens in zip(self.tables, held, strict=True):
            for i, block in enumerate(table):
                part = tokens[i * self.block_size : (i + 1) * self.block_size]
                pool[place[block], : len(part)] = part


def setting_of(case: Case, op: Operation) -> Setting:
    """The case's setting with what this call changes.

    Raises:
        ValueError: the case is not about a kernel, or the call changes a field that there is not.
    """
    if case.kernel is None:
        raise ValueError(f"{case.id}: has no kernel setting")
    return Setting.model_validate({**case.kernel.model_dump(), **(op.args or {})})


def inputs(case: Case, op: Operation) -> Inputs:
    """What the call is given."""
    s = setting_of(case, op)
    size = s.block_size or case.block_size
    tables = place(s, case.num_blocks, size)
    rows = [seq for seq in range(len(s.lengths)) for _ in range(s.repeat)]
    if s.payload == "coded":
        keys = [_held("k", t, n, size, s) for t, n in zip(tables, s.lengths, strict=True)]
        values = [_held("v", t, n, size, s) for t, n in zip(tables, s.lengths, strict=True)]
        query, targets = _probes(s, tables, rows, case.num_blocks, size)
        scale = 1.0
    else:
        keys, values = _drawn(s)
        query, targets = _queries(s, len(rows)), np.empty((0, 0), np.int64)
        scale = TREND_SCALE if _trended(s) else SCALE * s.head_size**-0.5
    for which, held in (("k", keys), ("v", values)):
        for tokens_of, n in zip(held, s.lengths, strict=True):
            if which in s.poisoned:
                tokens_of[[n - back for back in s.spoilt if back <= n]] = np.nan
    ends = None
    if s.queries or op.op == "prefill":
        counts = [s.queries[seq] for seq in rows]
        starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        chosen = list(s.rows) or list(range(len(rows)))
        query = np.concatenate([query[:0], *(query[starts[r] : starts[r + 1]] for r in chosen)])
        ends = np.cumsum([0, *(counts[r] for r in chosen)]).astype(np.int32)
    elif s.rows:
        query = query[list(s.rows)]
        targets = targets[list(s.rows)] if targets.size else targets
    if s.rows:
        rows = [rows[r] for r in s.rows]
    lo, hi = s.part or (0, max(s.lengths, default=0))
    lens = [max(0, min(s.lengths[seq], hi) - lo) for seq in rows]
    table = _padded(s, tables, rows, lens, lo // size, case.num_blocks, size)
    return Inputs(
        s, case.num_blocks, size, keys, values, tables, rows, lens, table, query, ends, targets, scale
    )


# ---------------------------------------------------------------- where the blocks lie


def place(s: Setting, num_blocks: int, block_size: int) -> list[list[int]]:
    """The table of each sequence.

    Raises:
        ValueError: the pool is too small.
    """
    wanted = [-(-n // block_size) for n in s.lengths]
    common = min([s.prefix // block_size, *wanted]) if s.topology == "shared" else 0
    total = sum(wanted) - common * max(0, len(wanted) - 1)
    if total > num_blocks:
        raise ValueError(f"{total} blocks are needed; the pool has {num_blocks}")
    order = _order(s, num_blocks, total)
    shared, rest = order[:common], iter(order[common:])
    tables: list[list[int]] = [list(shared) for _ in wanted]
    if s.topology == "interleaved":
        while any(len(t) < n for t, n in zip(tables, wanted, strict=True)):
            for t, n in zip(tables, wanted, strict=True):
                if len(t) < n:
                    t.append(next(rest))
    for t, n in zip(tables, wanted, strict=True):
        t += [next(rest) for _ in range(n - len(t))]
    return tables


def _order(s: Setting, num_blocks: int, total: int) -> list[int]:
    if s.topology in ("identity", "interleaved"):
        return list(range(total))
    if s.topology == "reversed":
        return list(range(num_blocks - 1, num_blocks - 1 - total, -1))
    if s.topology == "highest":
        return list(range(num_blocks - total, num_blocks))
    if s.topology == "flush":  # the first and the last block of the pool are in use
        return [num_blocks - 1, *range(total - 1)][:total]
    if s.topology == "wide":  # ids that 15 and 16 bits cannot hold, beside those that they would become
        edges = [i for e in (1 << 15, 1 << 16) for i in (e, e - 1, e + 1) if i < num_blocks]
        others = [i for i in range(num_blocks) if i not in set(edges)][:total]
        return [*edges, *others][:total]
    return [int(b) for b in np.random.default_rng((s.seed, 3)).permutation(num_blocks)[:total]]


def _padded(
    s: Setting,
    tables: list[list[int]],
    rows: list[int],
    lens: list[int],
    start: int,
    num_blocks: int,
    block_size: int,
) -> NDArray[np.int32]:
    """Each row's blocks, and behind them what it must never look at."""
    width = max([-(-n // block_size) for n in lens], default=0) + s.spare
    width = -(-width // s.table_multiple) * s.table_multiple
    table = np.empty((len(rows), width), np.int32)
    for i, (seq, n) in enumerate(zip(rows, lens, strict=True)):
        live = tables[seq][start : start + -(-n // block_size)]
        rest = width - len(live)
        if s.padding == "negative":
            filler = [(-1, -(2**31), -7)[j % 3] for j in range(rest)]
        elif s.padding == "huge":
            filler = [(2**31 - 1, num_blocks, 2**30)[j % 3] for j in range(rest)]
        else:
            filler = [stranger(tables[seq], num_blocks, j) for j in range(rest)]
        table[i] = [*live, *filler]
    return table


def stranger(own: Sequence[int], num_blocks: int, turn: int = 0) -> int:
    """A block that is not the sequence's own."""
    mine = set(own)
    others = [b for b in range(min(num_blocks, len(own) + 8)) if b not in mine]
    return others[turn % len(others)] if others else 0


# ---------------------------------------------------------------- random payloads


def _trended(s: Setting) -> bool:
    return bool(s.shift) or s.payload in TRENDS


def _drawn(s: Setting) -> tuple[list[Floats], list[Floats]]:
    """Keys and values by sequence and position, whatever blocks they lie in."""
    found: tuple[list[Floats], list[Floats]] = ([], [])
    width = (s.kv_heads, s.head_size)
    for kind, held in enumerate(found):
        for seq, n in enumerate(s.lengths):
            common = np.random.default_rng((s.seed, 11, kind)).standard_normal((s.prefix, *width), np.float32)
            own = np.random.default_rng((s.seed, 13, kind, seq)).standard_normal((n, *width), np.float32)
            tokens = np.concatenate([common[:n], own[min(s.prefix, n) :]])
            if kind == 0:
                tokens = _led(s, tokens)
            held.append(rounded(s.dtype, tokens))
    return found


def _led(s: Setting, keys: Floats) -> Floats:
    """Keys whose scores are shifted, or follow the payload's trend."""
    if s.payload == "large":
        return np.asarray(keys * np.float32(12), np.float32)
    if _trended(s):
        n, height = len(keys), TRENDS.get(s.payload, 0.0)
        trend = np.zeros(n)
        if s.payload == "spike":
            trend[:1] = height
        elif s.payload in TRENDS:
            trend = np.linspace(0, height, n) if s.payload == "rising" else np.linspace(height, 0, n)
        keys[:, :, 0] = ((trend + s.shift) / (LEVER * TREND_SCALE))[:, None]
    return keys


def _queries(s: Setting, rows: int) -> Floats:
    count = sum(s.queries) * s.repeat if s.queries else rows
    rng = np.random.default_rng((s.seed, 17))
    query = 2 * rng.standard_normal((count, s.kv_heads * s.group, s.head_size), np.float32)
    if s.payload == "large":
        query *= 12
    elif _trended(s):
        query[:, :, 0] = LEVER
    return rounded(s.query_dtype, query)


def tokens(given: Inputs) -> dict[str, Floats]:
    """The new keys "k" and values "v" of a write: [tokens, kv_heads, dim], as their dtype holds them."""
    s = given.setting
    shape = (len(s.slots), s.kv_heads, s.head_size)
    rng = np.random.default_rng((s.seed, 19))
    drawn = {name: rng.standard_normal(shape, np.float32) for name in ("k", "v")}
    if s.payload == "ties":
        return {name: rng.choice(ties(), shape) * np.sign(x) for name, x in drawn.items()}
    if s.source:
        return {name: rounded(s.source, x) for name, x in drawn.items()}
    return {name: rounded(s.dtype, x) for name, x in drawn.items()}


def _slopes(steepest: float, heads: int) -> Floats:
    return np.array([steepest * 2.0 ** (-4.0 * h / heads) for h in range(heads)], np.float32)


# ---------------------------------------------------------------- coded payloads


def coded(which: str, slots: Integers, s: Setting) -> Floats:
    """Key or value of each slot and KV head: [..., kv_heads, dim], all +1 or -1."""
    ids = slots[..., None] * s.kv_heads + np.arange(s.kv_heads)
    if which == "k":
        words = -(-s.head_size // 64)
        number = (ids[..., None] * words + np.arange(words)).astype(np.uint64)
        bits = (_mixed(number, s.seed)[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
        flat = bits.reshape(*ids.shape, words * 64)[..., : s.head_size].astype(np.float32)
    else:
        flat = ((ids[..., None] >> (np.arange(s.head_size) % 32)) & 1).astype(np.float32)
    return np.asarray(2 * flat - 1, np.float32)


def _mixed(x: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = (x + np.uint64(seed + 1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def named(out: NDArray[np.floating], kv_heads: int) -> tuple[int, int] | None:
    """(slot, KV head) that an output of a coded payload spells; None if it is no single one."""
    if not np.all(np.abs(out) > 0.9):
        return None
    bits = (out > 0).astype(np.int64)
    number = int(sum(int(b) << i for i, b in enumerate(bits[:32])))
    if not np.array_equal(bits, (number >> (np.arange(len(out)) % 32)) & 1):
        return None
    return number // kv_heads, number % kv_heads


def asked(s: Setting, length: int, block_size: int) -> list[int]:
    """Positions that a sequence is asked for: `length` itself is the one past the end."""
    if s.probes == "all":
        return list(range(length + 1))
    blocks = math.ceil(length / block_size)
    found = {length, length - 1}
    stride = -(-blocks // MOST_PAGES)
    for i in (i for i in range(blocks) if i % stride == 0 or i < 4 or i >= blocks - 4):
        edge = i < 4 or i >= blocks - 4
        offsets = {(5 * i) % block_size} | ({0, block_size - 1} if edge else set())
        found |= {p for o in offsets if (p := i * block_size + o) < length}
    return sorted(found - {-1})


def _held(which: str, table: list[int], length: int, size: int, s: Setting) -> Floats:
    positions = np.arange(length)
    blocks = np.array(table, np.int64)
    slots = blocks[positions // size] * size + positions % size if length else positions
    return coded(which, slots, s)


def _probes(
    s: Setting, tables: list[list[int]], rows: list[int], num_blocks: int, size: int
) -> tuple[Floats, Integers]:
    """A query for each row and query head, and the position it asks for.

    The rows and heads of a sequence share its positions out, each KV head in another order.
    """
    heads = np.arange(s.kv_heads * s.group)
    targets = np.zeros((len(rows), len(heads)), np.int64)
    slots = np.zeros_like(targets)
    wanted = [np.array(asked(s, n, size)) for n in s.lengths]
    reach = [np.array([*table, stranger(table, num_blocks)]) for table in tables]
    for r, seq in enumerate(rows):
        turn = (r % s.repeat) * s.group + heads % s.group + 7 * (heads // s.group)
        targets[r] = wanted[seq][turn % len(wanted[seq])]
        slots[r] = reach[seq][targets[r] // size] * size + targets[r] % size
    keys = coded("k", slots, s)  # of every KV head; each query head takes its own
    query = keys[np.arange(len(rows))[:, None], heads, heads // s.group]
    return (STRENGTH * query).astype(np.float32), targets

"""Runs a history on a manager and writes down what is seen; judges nothing."""

from __future__ import annotations

import contextlib
import operator
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvproof.contract import (
    BadInput,
    BadSlots,
    ContractError,
    OutOfBlocks,
    Refused,
    UnknownSequence,
)
from kvproof.records import DROPPED, UNWRITTEN, Case, Observation, Operation
from kvproof.subjects.memory import HarnessMemory, SubjectMemory

_WHILE_SWAPPED = frozenset({"append", "free", "swap_in", "table"})
"""Calls about a swapped-out sequence that have a defined answer."""
_ANSWERS = (OutOfBlocks, Refused, UnknownSequence, BadInput, BadSlots)


class Nonsense(Exception):
    """The subject returned something that is not of the contract's type."""


@dataclass
class Live:
    """What the driver knows of a live sequence."""

    length: int
    computed: int
    swapped: bool = False


def outcome_of(error: BaseException) -> str:
    for kind in _ANSWERS:
        if isinstance(error, kind):
            return kind.__name__
    return "error"


def describe(error: BaseException) -> str:
    if isinstance(error, Nonsense):
        return str(error)  # about what was answered, not about our own line
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" at {last[0].filename.rsplit('/', 1)[-1]}:{last[0].lineno}" if last else ""
    return f"{type(error).__name__}: {error}{where}"


def integers(value: Any, what: str) -> tuple[int, ...]:
    """A tuple of Python ints.

    Raises:
        Nonsense: value is no sequence of integers.
    """
    try:
        return tuple(operator.index(x) for x in value)
    except TypeError:
        raise Nonsense(f"{what} returned {value!r:.80}; a sequence of ints is needed") from None


def integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise Nonsense(f"{what} returned {value!r:.80}; an int is needed") from None


Clock = Callable[[int], contextlib.AbstractContextManager[None]]
"""Told the index of the operation that begins; leaves when it ends."""


class Driver:
    """One manager, its memory, and the sequences that are alive."""

    def __init__(self, manager: Any, case: Case, clock: Clock, call: Callable[[Driver, Operation], Any]):
        self.manager = manager
        self.call = call
        self.capabilities: frozenset[str] = frozenset(manager.capabilities)
        self.block_size = case.block_size
        self.lazy = bool(getattr(manager, "lazy", False))
        """Its table has a block only after the commit, so that comes before the write."""
        self.clock = clock
        self.memory: HarnessMemory | SubjectMemory = (
            SubjectMemory(manager) if "data" in self.capabilities else HarnessMemory(case.block_size)
        )
        self.looking = getattr(manager, "_looking", contextlib.nullcontext)
        """A program out of process answers all that is looked at at once."""
        self.live: dict[int, Live] = {}
        self.raw: list[int] = []
        """Blocks that `alloc` returned, in order; operations name them by index."""
        self.serial = 0
        self.tables: dict[int, tuple[int, ...]] = {}
        self.held: dict[int, tuple[Any, tuple[int, ...]]] = {}
        """The table objects that the subject returned last, and what they said then."""
        self.writes: list[tuple[int, int, int, int, int]] = []

    def has(self, capability: str) -> bool:
        return capability in self.capabilities

    # ------------------------------------------------------------ one operation

    def apply(self, step: int, op: Operation) -> Observation:
        """Call the subject and observe everything its capabilities offer."""
        self.writes = []
        seen: dict[str, Any] = {}
        with self.clock(step):
            self._ask_first(op, seen)
            try:
                seen["value"] = self.call(self, op)
                if (op.args or {}).get("scribble"):
                    seen["value"] = self.scribbled(op.seq)
                seen["outcome"] = "ok"
            except Skip:
                seen["outcome"] = "skipped"
            except Nonsense as error:
                return Observation(outcome="error", detail=str(error))
            except ContractError as error:
                seen["outcome"], seen["detail"] = outcome_of(error), str(error)
            except KeyError as error:
                if not (op.args or {}).get("unknown"):
                    return Observation(outcome="error", detail=describe(error))
                seen["outcome"], seen["detail"] = "UnknownSequence", describe(error)
            except (Exception, SystemExit) as error:
                return Observation(outcome="error", detail=describe(error))
            try:
                with self.looking():
                    self._observe(op, seen)
            except (Exception, SystemExit) as error:
                said = str(error) if isinstance(error, Nonsense) else describe(error)
                return Observation(outcome="error", detail=f"looking at the state after it: {said}")
        return Observation.model_construct(**seen)

    def _ask_first(self, op: Operation, seen: dict[str, Any]) -> None:
        """can_add, can_append and match, asked before the call; what they raise is their answer."""
        seq = op.seq
        with contextlib.suppress(ContractError):
            if op.op == "add" and not op.args and op.tokens and seq not in self.live:
                if self.has("probe") and op.keys is None:
                    seen["probe"] = bool(self.manager.can_add(seq, list(op.tokens)))
                if self.has("prefix") and hasattr(self.manager, "match"):
                    keys = {} if op.keys is None else {"keys": op.keys}
                    seen["matched"] = integer(self.manager.match(list(op.tokens), **keys), "match")
            elif op.op == "append" and self.has("probe") and seq in self.live and op.tokens:
                seen["probe"] = bool(self.manager.can_append(seq, len(op.tokens)))

    def need(self, op: Operation, seq: Any) -> Live | None:
        """The live sequence; None for one that is asked for though it is unknown.

        Raises:
            Skip: for want of an earlier success it is not alive, or still swapped out.
        """
        live = self.live.get(seq)
        if live is None and not (op.args or {}).get("unknown"):
            raise Skip
        if live is not None and live.swapped and op.op not in _WHILE_SWAPPED:
            raise Skip
        return live

    # ------------------------------------------------------------ contents

    def write(self, seq: int, lo: int, hi: int) -> None:
        """Write a fresh serial for positions lo..hi-1, where the table says."""
        table = self.read_table(seq)
        for position in range(lo, hi):
            index, offset = divmod(position, self.block_size)
            if index < len(table) and table[index] >= 0:
                self.serial += 1
                self.memory.write(table[index], offset, self.serial)
                self.writes.append((self.serial, table[index], offset, seq, position))

    def read_table(self, seq: int) -> tuple[int, ...]:
        return integers(self.manager.table(seq), f"table({seq})")

    def scribbled(self, seq: int) -> tuple[int, ...]:
        """The table after a caller has written over the one it was given; what was written is undone."""
        given = self.manager.table(seq)
        said = integers(given, f"table({seq})")
        with contextlib.suppress(TypeError, ValueError, IndexError):  # a tuple, or a read-only view
            given[0] = -7
        if isinstance(given, list):
            given.append(-7)
        found = self.read_table(seq)
        with contextlib.suppress(TypeError, ValueError):
            given[:] = said
        return found

    def _table_of(self, seq: int) -> Any | None:
        """The table object that the subject returns; None if it knows no such sequence."""
        try:
            return self.manager.table(seq)
        except UnknownSequence:
            return None

    def _read(self, live: Live, table: tuple[int, ...]) -> tuple[int, ...]:
        found = []
        for position in range(live.computed):
            index, offset = divmod(position, self.block_size)
            block = table[index] if index < len(table) else None
            if block is None:
                found.append(UNWRITTEN)
            elif block < 0:
                found.append(DROPPED)
            else:
                found.append(self.memory.read(block, offset))
        return tuple(found)

    def replay_copies(self) -> tuple[tuple[Any, Any], ...]:
        """Take the copies the subject reports, or infer them from tables, and replay them."""
        if self.has("copies"):
            pairs = pairs_of(self.manager.copies())
            self.memory.copy(pairs)
            return tuple(pairs)
        moved: dict[int, int] = {}
        for seq, live in self.live.items():
            if live.swapped or seq not in self.tables:
                continue
            before, after = self.tables[seq], self._table_of(seq)
            if after is None:
                continue
            computed_blocks = -(-live.computed // self.block_size)
            for a, b in list(zip(before, after, strict=False))[:computed_blocks]:
                if a != b and a >= 0 and b >= 0:
                    moved[b] = a
        inferred = [(a, b) for b, a in moved.items()]
        self.memory.copy_at_once(inferred)
        return tuple(inferred)

    # ------------------------------------------------------------ looking

    def _observe(self, op: Operation, seen: dict[str, Any]) -> None:
        m = self.manager
        seen["copies"] = self.replay_copies()
        seen["free"] = integer(m.free_blocks(), "free_blocks")
        seen["stale"] = tuple(
            s for s, (held, said) in self.held.items() if integers(held, f"table({s})") != said
        )
        tables: dict[int, tuple[int, ...]] = {}
        left = {b for t in self.tables.values() for b in t if b >= 0}
        self.held = {}
        for seq in list(self.live):
            table = self._table_of(seq)
            if table is None:
                del self.live[seq]  # the subject has lost it: the checks miss its table
                continue
            tables[seq] = integers(table, f"table({seq})")
            self.held[seq] = (table, tables[seq])
        self.tables = dict(tables)
        seen["tables"] = tables
        seen["reads"] = {s: self._read(live, tables[s]) for s, live in self.live.items() if not live.swapped}
        seen["writes"] = tuple(self.writes)
        if self.has("refcount"):
            blocks = {b for t in tables.values() for b in t if b >= 0}
            seen["refs"] = {b: integer(m.refcount(b), f"refcount({b})") for b in sorted(blocks)}
            for b in sorted(left - blocks):  # nobody may hold it now; an error is as good as 0
                with contextlib.suppress(ContractError, LookupError):
                    seen["refs"][b] = integer(m.refcount(b), f"refcount({b})")
        if self.has("selfcheck"):
            seen["selfcheck"] = tuple(str(line) for line in m.selfcheck())


class Skip(Exception):
    """The operation is about a sequence that never came to be."""


def pairs_of(copies: Any) -> list[tuple[Any, Any]]:
    """Block copies as plain data."""
    return [(_block(source), _block(target)) for source, target in copies]


def _block(block: Any) -> Any:
    if isinstance(block, tuple | list) and len(block) == 2 and block[0] == "host":
        return ("host", integer(block[1], "copies"))
    return integer(block, "copies")

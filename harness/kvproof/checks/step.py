"""One step as the checks see it: the operation, what was seen before and after, and the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvproof.oracle.model import Facts, Model, Sequence
from kvproof.records import Case, Finding, Observation, Operation

FAILED = frozenset({"OutOfBlocks", "Refused", "UnknownSequence", "BadInput", "BadSlots"})
START = Observation(outcome="ok")


@dataclass(frozen=True)
class Step:
    case: Case
    index: int
    op: Operation
    seen: Observation
    before: Observation
    """The observation of the step before."""
    was: dict[int, Sequence]
    """The sequences before the operation."""
    was_raw: dict[int, int]
    """References of raw blocks before it."""
    model: Model
    """After the operation."""

    @property
    def facts(self) -> Facts:
        return self.model.facts

    @property
    def ok(self) -> bool:
        return self.seen.outcome == "ok"

    @property
    def failed(self) -> bool:
        return self.seen.outcome in FAILED

    @property
    def committed(self) -> set[int]:
        """Sequences that this operation commits."""
        if self.op.op == "commit" and self.ok:
            return {self.op.seq}
        return set(self.op.seqs or ()) if self.op.op == "commit_batch" and self.ok else set()

    @property
    def wrong_on_purpose(self) -> bool:
        """The operation asks for something that must be refused as bad input.

        Only while what makes it wrong is true: a shrunk history may have lost it.
        """
        args, op = self.op.args or {}, self.op
        if not (args.get("bad") or args.get("unknown")):
            return False
        if op.op in ("retain", "release", "release_many"):
            named = [self.model.raw[i] for i in op.blocks or () if i < len(self.model.raw)]
            return not any(self.was_raw.get(block, 0) > 0 for block in named)
        if args.get("unknown"):
            return any(seq not in self.was for seq in op.seqs or (op.seq,))
        if args["bad"] == "a duplicate id":
            return (op.seq if op.child is None else op.child) in self.was
        return True

    def has(self, capability: str) -> bool:
        return capability in self.facts.capabilities

    def finding(
        self,
        requirement: str,
        expected: str,
        got: str,
        message: str = "",
        slot: tuple[int, int] | None = None,
    ) -> Finding:
        name = f"KVP-{requirement}"
        return Finding(
            requirement=name, step=self.index, expected=expected, got=got, message=message, slot=slot
        )

    def owners(self, seen: Observation | None = None) -> dict[int, list[tuple[int, int]]]:
        """Block -> (sequence, index) of every table entry that names it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for seq, table in (seen or self.seen).tables.items():
            for index, block in enumerate(table):
                if block >= 0:
                    found.setdefault(block, []).append((seq, index))
        return found

    def held(self, seen: Observation | None = None) -> set[int]:
        """Distinct blocks in tables, and raw ones with a reference left."""
        blocks = set(self.owners(seen))
        return blocks | {b for b, n in self.model.raw_refs.items() if n > 0}

    def held_at_most(self) -> int:
        """Blocks held before the operation; a lazy table may not name all of them yet."""
        held = len(self.held(self.before))
        if self.facts.lazy:
            for seq, q in self.was.items():
                if not q.swapped:
                    most = self.facts.blocks(q.length) + self.facts.lookahead
                    held += max(0, most - len(self.before.tables.get(seq, ())))
        return held

    def live(self) -> Iterator[tuple[int, Sequence, tuple[int, ...]]]:
        """(id, sequence, table) of every live sequence that is not swapped out."""
        for seq, table in self.seen.tables.items():
            sequence = self.model.sequences.get(seq)
            if sequence is not None and not sequence.swapped:
                yield seq, sequence, table

    def free_before(self) -> int | None:
        return self.facts.capacity - self.facts.watermark if self.index == 0 else self.before.free

    def tail_shared(self, seq: int) -> bool:
        """Before the operation, the partial tail of `seq` was in another table too."""
        table = self.before.tables.get(seq, ())
        sequence = self.was.get(seq)
        if sequence is None or sequence.length % self.facts.block_size == 0 or not table:
            return False
        index = sequence.length // self.facts.block_size
        if index >= len(table):
            return False
        return len(self.owners(self.before).get(table[index], ())) > 1

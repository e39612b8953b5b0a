"""The sequence model: what a history means, whatever the implementation did inside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof.oracle.fingerprints import Fingerprints
from kvproof.records import Observation, Operation


@dataclass(frozen=True)
class Facts:
    """What the subject declares, and the pool it was made with."""

    num_blocks: int
    block_size: int
    capabilities: frozenset[str] = frozenset()
    reserved: frozenset[int] = frozenset()
    lookahead: int = 0
    lazy: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    publish: str = "commit"
    guard: str | int | None = None

    @property
    def capacity(self) -> int:
        return self.num_blocks - len(self.reserved)

    @property
    def watermark(self) -> int:
        return int(self.policy.get("watermark", 0))

    def blocks(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self.block_size)


@dataclass
class Sequence:
    """A live sequence: its tokens as fingerprints of whole histories."""

    fingerprints: list[int]
    keys: Mapping[str, Any] | None
    computed: int
    prompt: int
    family: int
    """Sequences that come from one another by fork."""
    swapped: bool = False
    stale: bool = False
    """Started before a reset: what it computes is matched by nobody any more."""
    tokens: list[Any] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.fingerprints)

    def copy(self) -> Sequence:
        return replace(self, fingerprints=list(self.fingerprints), tokens=list(self.tokens))


class Model:
    """State after each operation that succeeded."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.prints = Fingerprints()
        self.sequences: dict[int, Sequence] = {}
        self.raw: list[int] = []
        self.raw_refs: dict[int, int] = {}
        self.written: dict[int, int] = {}
        """Serial of a write -> the history it stands for."""
        self.ever: dict[tuple[int, int], set[int]] = {}
        """(block, offset) -> every history that was ever written there."""
        self.last: dict[tuple[int, int], int] = {}
        """(block, offset) -> the history written there last; copies are not followed."""
        self.may_hit: set[int] = set()
        """Histories, at block ends, whose blocks may be matched."""
        self.must_hit: set[int] = set()
        """Those of prompts that stay matchable for want of any reason to evict them."""
        self.drafts: set[int] = set()
        """Histories of tokens that were truncated before they were computed."""
        self.forgotten: set[int] = set()
        """Histories that a reset has made unmatchable."""
        self.taken = 0
        """Upper bound of the blocks taken so far: at most capacity, nothing need be evicted."""

        self.cut: set[int] = set()
        """Histories of full blocks that a sharer has truncated: it may write into them once it is alone."""
        self.out = 0
        """Blocks in the host tier now."""
        self.fitted = 0
        """The most that were there at once: the host tier has room for so many."""

    @property
    def roomy(self) -> bool:
        return self.taken + self.facts.lookahead <= self.facts.capacity

    def expected_hit(self, fingerprints: list[int], among: set[int]) -> int:
        """Tokens of the longest run of full blocks from block 0 on, less than the prompt."""
        size, hit = self.facts.block_size, 0
        for end in range(size, len(fingerprints), size):
            if fingerprints[end - 1] not in among:
                break
            hit = end
        return hit

    def print_of(self, serial: int) -> int | None:
        """The history behind a read; None if the slot was never written."""
        return self.written.get(serial)

    # ------------------------------------------------------------ operations

    def apply(self, op: Operation, seen: Observation) -> None:
        """Take over an operation that succeeded."""
        if seen.outcome == "ok":
            handler = getattr(self, f"_{op.op}", None)
            if handler is not None:
                handler(op, seen)
        for serial, block, offset, seq, position in seen.writes:
            sequence = self.sequences.get(seq)
            if sequence is not None and position < sequence.length:
                self.written[serial] = sequence.fingerprints[position]
                self.ever.setdefault((block, offset), set()).add(sequence.fingerprints[position])
                self.last[block, offset] = sequence.fingerprints[position]

    def _add(self, op: Operation, seen: Observation) -> None:
        tokens = list(op.tokens or ())
        prints = self.prints.extend([], tokens, op.keys)
        n = max(0, min(int(seen.value), len(tokens)))
        self.sequences[op.seq] = Sequence(prints, op.keys, n, len(tokens), family=op.seq, tokens=tokens)
        self.taken += self.facts.blocks(len(tokens)) - n // self.facts.block_size + self.facts.lookahead

    def _append(self, op: Operation, seen: Observation) -> None:
        sequence = self.sequences.get(op.seq)
        if sequence is not None:
            self._grow(sequence, list(op.tokens or ()))

    def _append_batch(self, op: Operation, seen: Observation) -> None:
        for seq, token in zip(op.seqs or (), op.tokens or (), strict=False):
            if seq in self.sequences:
                self._grow(self.sequences[seq], [token])

    def _grow(self, sequence: Sequence, tokens: list[Any]) -> None:
        before = self.facts.blocks(sequence.length)
        sequence.fingerprints += self.prints.extend(sequence.fingerprints, tokens, sequence.keys)
        sequence.tokens += tokens
        self.taken += self.facts.blocks(sequence.length) - before + 1  # one for a copy-on-write

    def _commit(self, op: Operation, seen: Observation) -> None:
        sequence = self.sequences.get(op.seq)
        if sequence is not None:
            sequence.computed = max(sequence.computed, min(int(seen.value), sequence.length))
            if self.facts.publish != "free":
                self._publish(sequence)

    def _commit_batch(self, op: Operation, seen: Observation) -> None:
        for seq in op.seqs or ():
            sequence = self.sequences.get(seq)
            if sequence is not None and not sequence.swapped:
                sequence.computed = sequence.length
                if self.facts.publish != "free":
                    self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        size = self.facts.block_size
        if sequence.stale:
            self.forgotten.update(sequence.fingerprints)
            return
        for end in range(size, sequence.computed + 1, size):
            self.may_hit.add(sequence.fingerprints[end - 1])
            if end <= sequence.prompt and sequence.fingerprints[end - 1] not in self.cut:
                self.must_hit.add(sequence.fingerprints[end - 1])

    def _free(self, op: Operation, seen: Observation) -> None:
        sequence = self.sequences.pop(op.seq, None)
        if sequence is not None and sequence.swapped:
            self.out -= self.facts.blocks(sequence.length)
        elif sequence is not None and self.facts.publish == "free":
            self._publish(sequence)

    def _fork(self, op: Operation, seen: Observation) -> None:
        parent = self.sequences.get(op.seq)
        if parent is not None:
            self.sequences[op.child] = parent.copy()
            self.taken += 1 + self.facts.lookahead

    def _truncate(self, op: Operation, seen: Observation) -> None:
        sequence = self.sequences.get(op.seq)
        if sequence is None or op.length is None:
            return
        self.drafts.update(sequence.fingerprints[max(op.length, sequence.computed) :])
        self._forgettable(sequence)
        end = self.facts.blocks(op.length) * self.facts.block_size
        if op.length < end <= sequence.length:
            self.cut.add(sequence.fingerprints[end - 1])
        self.taken += self.facts.lookahead  # dropped now, and taken again
        del sequence.fingerprints[op.length :], sequence.tokens[op.length :]
        sequence.computed = min(sequence.computed, op.length)
        sequence.prompt = min(sequence.prompt, op.length)

    def _forgettable(self, sequence: Sequence) -> None:
        """Its blocks may lose their identity now: no longer a must."""
        self.must_hit.difference_update(sequence.fingerprints)

    def _swap_out(self, op: Operation, seen: Observation) -> None:
        sequence = self.sequences.get(op.seq)
        if sequence is not None:
            sequence.swapped = True
            self._forgettable(sequence)
            self.out += self.facts.blocks(sequence.length)
            self.fitted = max(self.fitted, self.out)

    def _swap_in(self, op: Operation, seen: Observation) -> None:
        sequence = self.sequences.get(op.seq)
        if sequence is not None:
            sequence.swapped = False
            self.out -= self.facts.blocks(sequence.length)
            self.taken += self.facts.blocks(sequence.length) + self.facts.lookahead

    def _reset(self, op: Operation, seen: Observation) -> None:
        if seen.value:
            self.forgotten |= self.may_hit
            self.may_hit.clear()
            self.must_hit.clear()
            for sequence in self.sequences.values():
                sequence.stale = True

    def _reclaim(self, op: Operation, seen: Observation) -> None:
        self.taken += int(seen.value["asked"])

    def _alloc(self, op: Operation, seen: Observation) -> None:
        self.raw.append(int(seen.value))
        self.raw_refs[int(seen.value)] = 1
        self.taken += 1

    def _retain(self, op: Operation, seen: Observation) -> None:
        for index in op.blocks or ():
            self.raw_refs[self.raw[index]] = self.raw_refs.get(self.raw[index], 0) + 1

    def _release(self, op: Operation, seen: Observation) -> None:
        for index in op.blocks or ():
            self.raw_refs[self.raw[index]] = max(0, self.raw_refs.get(self.raw[index], 0) - 1)

    _release_many = _release

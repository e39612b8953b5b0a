"""The agreed state: tables in logical blocks, their owners, and what is cached. Every rank holds one.

It is a function of the decisions alone, so equal on all ranks; whoever is the driver plans with it. A
decision is prepared without changing anything and takes effect in `commit`, which cannot fail.

Idle blocks stand in one queue, longest idle first, and keep their contents until they are used again. A key
names a block's whole history: 16 bytes of a hash over the key before it and the block's tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple

from kvproof.contract import BadInput, OutOfBlocks, Refused, UnknownSequence

from .decision import Change, Decision

_HEAD = struct.Struct("<qq")
Hit = list[tuple[bytes, int]]
"""Key and block of each cached block of a prompt, from the first on."""


class Row(NamedTuple):
    """One sequence."""

    length: int
    blocks: tuple[int, ...]
    mark: bytes
    """Hash of the blocks."""


class Prepared(NamedTuple):
    """A decision that fits, and the rows that it leads to."""

    decision: Decision
    rows: dict[int, Row]
    digest: bytes


class Replica:
    """State of a group with `capacity` blocks a rank."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self.capacity, self.block_size = capacity, block_size
        self.epoch = 0
        self.rows: dict[int, Row] = {}
        self.tokens: dict[int, list[int]] = {}
        self.batch: tuple[int, ...] = ()
        """Sequences of the last decision."""
        self.owners: dict[int, int] = {}
        self.idle: dict[int, None] = dict.fromkeys(range(capacity))
        self.block_of: dict[bytes, int] = {}
        self.key_of: dict[int, bytes] = {}
        self.content: dict[int, Sequence[int]] = {}
        """Tokens of each cached block."""

    # ------------------------------------------------------------ questions

    def length(self, seq: int) -> int:
        return self.rows[seq].length if seq in self.rows else 0

    def entries(self, seq: int) -> int:
        return len(self.rows[seq].blocks) if seq in self.rows else 0

    def row(self, seq: int) -> Row:
        """Raises UnknownSequence."""
        try:
            return self.rows[seq]
        except (KeyError, TypeError):
            raise UnknownSequence(f"no sequence {seq!r}") from None

    def digest(self) -> bytes:
        return _digest(self.rows)

    def match(self, tokens: Sequence[int]) -> Hit:
        """Cached blocks of a prompt; at least one of its tokens stays to be computed."""
        found: Hit = []
        for key in self._keys(b"", tokens[: (len(tokens) - 1) // self.block_size * self.block_size]):
            if key not in self.block_of:
                break
            found.append((key, self.block_of[key]))
        return found

    def holds(self, hit: Hit) -> int:
        """How many blocks of a hit, from the first on, are cached here too."""
        for count, (key, block) in enumerate(hit):
            if self.block_of.get(key) != block:
                return count
        return len(hit)

    def _keys(self, key: bytes, tokens: Sequence[int]) -> Iterator[bytes]:
        for start in range(0, len(tokens), self.block_size):
            piece = tokens[start : start + self.block_size]
            key = blake2b(key + struct.pack(f"<{len(piece)}q", *piece), digest_size=16).digest()
            yield key

    # ------------------------------------------------------------ a decision

    def prepare(self, decision: Decision) -> Prepared:
        """What the decision leads to; nothing changes.

        Raises:
            BadInput: it does not fit this state.
        """
        rows = dict(self.rows)
        left: set[int] = set()
        for seq in decision.removed:
            left.update(self.row(seq).blocks)
            rows.pop(seq, None)
        for change in decision.changes:
            left.update(self.row(change.seq).blocks[change.kept :] if change.seq in self.rows else ())
        for change in decision.changes:
            rows[change.seq] = self._changed(change, left)
        return Prepared(decision, rows, _digest(rows))

    def _changed(self, change: Change, left: set[int]) -> Row:
        old = self.rows.get(change.seq, _NEW)
        length = change.start + len(change.tokens)
        entries = change.kept + len(change.blocks)
        wanted = -(-length // self.block_size) if change.tokens else 0
        if entries != wanted or change.kept > len(old.blocks):
            raise BadInput(f"sequence {change.seq}: {entries} blocks for {length} tokens, not {wanted}")
        if not change.blocks and change.kept == len(old.blocks):
            return old._replace(length=length)
        fresh = max(change.start // self.block_size - change.kept, 0)
        for block in change.blocks[fresh:]:
            if not 0 <= block < self.capacity or (self.owners.get(block, 0) and block not in left):
                raise BadInput(f"sequence {change.seq}: block {block} is not free on this rank")
        blocks = old.blocks[: change.kept] + tuple(change.blocks)
        return Row(length, blocks, _mark(blocks))

    def commit(self, prepared: Prepared) -> None:
        """The decision takes effect."""
        decision, before = prepared.decision, self.rows
        for seq in decision.removed:
            self._release(before[seq].blocks)
            del self.tokens[seq]
        for change in decision.changes:
            if change.seq in before and change.kept < len(before[change.seq].blocks):
                self._release(before[change.seq].blocks[change.kept :])
        # All hits are held before any block is used again.
        for change in decision.changes:
            self._retain(change.blocks)
        for change in decision.changes:
            fresh = max(change.start // self.block_size - change.kept, 0)
            if change.seq not in self.tokens:
                self.tokens[change.seq] = [t for b in change.blocks[:fresh] for t in self.content[b]]
            for block in change.blocks[fresh:]:
                self.forget(block)
        self.rows = prepared.rows
        for change in decision.changes:
            self._written(change)
        self.batch = tuple(change.seq for change in decision.changes)
        self.epoch += 1

    def _written(self, change: Change) -> None:
        """Keep the tokens, and publish the blocks that they fill."""
        if not change.tokens:
            return
        row, size = self.rows[change.seq], self.block_size
        tokens = self.tokens[change.seq]
        tokens[change.start :] = change.tokens
        full = change.start // size
        if len(tokens) // size == full:
            return
        parent = self.key_of.get(row.blocks[full - 1]) if full else b""
        if parent is None:  # an equal block of another sequence has taken its place
            *_, parent = self._keys(b"", tokens[: full * size])
        for key in self._keys(parent, tokens[full * size : len(tokens) // size * size]):
            self._publish(key, row.blocks[full], tokens[full * size : (full + 1) * size])
            full += 1

    def _publish(self, key: bytes, block: int, tokens: Sequence[int]) -> None:
        """The newest block of equal contents is the one that is found."""
        self.forget(block)
        if key in self.block_of:
            self.forget(self.block_of[key])
        self.block_of[key], self.key_of[block], self.content[block] = block, key, tokens

    def forget(self, block: int) -> None:
        """A block loses its contents."""
        key = self.key_of.pop(block, None)
        if key is not None:
            del self.block_of[key], self.content[block]

    def _retain(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self.owners[block] = self.owners.get(block, 0) + 1
            self.idle.pop(block, None)

    def _release(self, blocks: Sequence[int]) -> None:
        """The tail of a table is used again before its head."""
        for block in reversed(blocks):
            self.owners[block] -= 1
            if not self.owners[block]:
                del self.owners[block]
                self.idle[block] = None


_NEW = Row(0, (), b"")


def _mark(blocks: Sequence[int]) -> bytes:
    return blake2b(struct.pack(f"<{len(blocks)}q", *blocks), digest_size=8).digest()


def _digest(rows: dict[int, Row]) -> bytes:
    parts = [_HEAD.pack(seq, row.length) + row.mark for seq, row in sorted(rows.items())]
    return blake2b(b"".join(parts), digest_size=8).digest()


class Plan:
    """Turns the operations of a step into a decision; the replica stays as it is."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.changes: list[Change] = []
        self.removed: list[int] = []
        self._seen: set[int] = set()
        self._held: set[int] = set()
        self._spare: Iterator[int] | None = None
        self._left: dict[int, int] = {}

    def once(self, seq: int) -> None:
        """A sequence stands in one operation of a step."""
        if type(seq) is not int or not 0 <= seq < 2**63:
            raise BadInput(f"sequence id must be an integer in 0..{2**63 - 1}, not {seq!r}")
        if seq in self._seen:
            raise BadInput(f"sequence {seq} stands in two operations of one step")
        self._seen.add(seq)

    def hold(self, blocks: Iterable[int]) -> None:
        """Blocks of a hit are not taken for others."""
        self._held.update(blocks)

    def leave(self, seq: int) -> None:
        """Count what a sequence gives up."""
        for block in self.replica.row(seq).blocks:
            self._left[block] = self._left.get(block, 0) + 1

    def take(self, count: int, total: int) -> list[int]:
        """Blocks that nobody holds, longest idle first, then those given up in this step.

        Raises:
            OutOfBlocks: there are not so many. Refused: `total` is more than the capacity.
        """
        replica = self.replica
        if total > replica.capacity:
            raise Refused(f"{total} blocks for one sequence, each rank has {replica.capacity}")
        if not count:
            return []
        if self._spare is None:  # whoever leaves in this step, and all hits, are known by now
            given = [b for b, n in self._left.items() if replica.owners[b] == n]
            self._spare = (b for pool in (replica.idle, given) for b in pool if b not in self._held)
        found = list(islice(self._spare, count))
        if len(found) < count:
            raise OutOfBlocks(f"{count} blocks needed, {len(found)} available on each rank")
        return found

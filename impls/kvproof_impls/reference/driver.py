"""The driver of a group: one decision a step, prepared on all ranks, then committed on all.

(The chapter checks every rank and then allocates on each, section 3.2.4; a rank that fails in between leaves
the others with a sequence that it does not have.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvproof.contract import BadInput, Diverged, RankLost, Refused

from .decision import Change, Decision, encode
from .inputs import token_array
from .rank import (
    Kind,
    Rank,
    pack,
    pack_hit,
    pack_prepare,
    pack_size,
    pack_target,
    unpack,
    unpack_size,
    unpack_state,
)
from .replica import Hit, Plan

CLOSED = b""
"""In place of a message: its source will never answer."""


class Transport(Protocol):
    """How the driver reaches the other ranks."""

    def send(self, target: int, data: bytes) -> None: ...

    def receive(self) -> tuple[int, bytes] | None:
        """(source, data) of the next message; None when nothing comes within the timeout."""
        ...


class Driver:
    """Plans with its own rank's state and carries the others along."""

    tries = 4
    """A request is sent so often to a rank that does not answer."""

    def __init__(self, rank: Rank, others: Iterable[int], transport: Transport, generation: int) -> None:
        self.rank, self.others, self.transport = rank, sorted(others), transport
        self.generation, self.serial = generation, 0
        rank.generation, rank.lost = generation, set()

    # ------------------------------------------------------------ forming the group

    def start(self) -> None:
        """The first time: agree on a capacity, the least of all ranks."""
        sizes = [unpack_size(body) for body in self._ask(Kind.SIZE).values()]
        capacity = min([self.rank.num_blocks, *sizes])
        self._ask(Kind.START, pack_size(capacity))
        self.rank.replica = self.rank.replica_type(capacity, self.rank.block_size)

    def join(self) -> None:
        """After a loss: agree on an epoch, the latest that any rank is at."""
        found = {r: unpack_state(body) for r, body in self._ask(Kind.STATE).items()}
        found[self.rank.number] = unpack_state(self.rank.state())
        epoch, digest = max((epoch, digest) for epoch, digest, _ in found.values())
        there = self._ask(Kind.SETTLE, pack_target(epoch, digest))
        apart = [r for r, body in there.items() if body != b"\1"]
        if not self.rank.settle(epoch, digest):
            apart.append(self.rank.number)
        if apart:
            self._lose(apart, f"cannot be brought to epoch {epoch}")

    # ------------------------------------------------------------ steps

    def step(self, operations: Sequence[tuple[Any, ...]]) -> list[int | None]:
        """See `kvproof.contract.RankGroup.step`."""
        rank = self.rank
        if rank.lost:
            raise RankLost(sorted(rank.lost), "lost before; the group has to be formed again")
        plan = Plan(rank.replica)
        answers = self._plan(plan, operations)
        decision = Decision(tuple(plan.changes), tuple(plan.removed))
        prepared = rank.replica.prepare(decision)
        tokens, tables = encode(decision, rank.replica)
        body = pack_prepare(rank.replica.epoch, prepared.digest, tokens, tables)
        ready = self._ask(Kind.PREPARE, body, refusable=True)
        refused = {r: answer for r, answer in ready.items() if isinstance(answer, Refused)}
        apart = [r for r, answer in ready.items() if r not in refused and answer != prepared.digest]
        if refused or apart:
            self._ask(Kind.DROP)
            if apart:
                raise Diverged(f"rank {apart[0]}: another digest than the driver's")
            raise Refused(", ".join(f"rank {r}: {why}" for r, why in refused.items()))
        rank.apply(prepared)
        done = self._ask(Kind.COMMIT, refusable=True)
        apart = [r for r, answer in done.items() if answer != prepared.digest]
        if apart:  # the others have the step: they go on when the group is formed without these
            rank.lost |= set(apart)
            raise Diverged(f"rank {apart[0]}: another digest than the driver's")
        return answers

    def _plan(self, plan: Plan, operations: Sequence[tuple[Any, ...]]) -> list[int | None]:
        """Fill the plan; the answer of each operation."""
        parsed = [_parsed(operation) for operation in operations]
        hits: list[Hit] = []
        for name, seq, tokens in parsed:
            plan.once(seq)
            if name in ("free", "preempt"):
                plan.leave(seq)
            hits.append(self._hit(name, seq, tokens))
        for hit in hits:
            plan.hold(block for _, block in hit)
        return [self._operation(plan, *what, hit) for what, hit in zip(parsed, hits, strict=True)]

    def _hit(self, name: str, seq: int, tokens: Sequence[int]) -> Hit:
        """What every rank has cached of a sequence that starts."""
        replica = self.rank.replica
        if name == "add" and seq in replica.rows:
            raise BadInput(f"sequence {seq} exists already")
        if name == "resume":
            if replica.row(seq).blocks:
                raise Refused(f"sequence {seq} is not preempted")
            tokens = replica.tokens[seq]
        hit = replica.match(tokens) if name in ("add", "resume") else []
        return hit[: self.agreed(hit)] if hit else hit

    def agreed(self, hit: Hit) -> int:
        """Blocks of the hit that all ranks have."""
        answers = self._ask(Kind.MATCH, pack_hit(hit))
        return min([len(hit), *(unpack_size(body) for body in answers.values())])

    def _operation(self, plan: Plan, name: str, seq: int, tokens: Sequence[int], hit: Hit) -> int | None:
        replica, size = self.rank.replica, self.rank.block_size
        if name in ("add", "resume"):
            tokens = tokens if name == "add" else replica.tokens[seq]
            start, total = len(hit) * size, -(-len(tokens) // size)
            blocks = [block for _, block in hit] + plan.take(total - len(hit), total)
            plan.changes.append(Change(seq, start, tokens[start:], 0, blocks))
            return start
        row = replica.row(seq)
        if name == "free":
            plan.removed.append(seq)
        elif name == "preempt":
            if not row.blocks:
                raise Refused(f"sequence {seq} is preempted already")
            plan.changes.append(Change(seq, row.length, (), 0, ()))
        else:
            if not row.blocks:
                raise Refused(f"sequence {seq} is preempted: resume it first")
            total = -(-(row.length + len(tokens)) // size)
            blocks = plan.take(total - len(row.blocks), total)
            plan.changes.append(Change(seq, row.length, tokens, len(row.blocks), blocks))
        return None

    # ------------------------------------------------------------ messages

    def _ask(self, kind: Kind, body: bytes = b"", *, refusable: bool = False) -> Mapping[int, Any]:
        """Each rank's answer to a request.

        Raises:
            RankLost: some did not answer; the others know it.
        """
        answers, silent = self._round(kind, body)
        if silent:
            self._lose(silent, f"no answer to {kind.name.lower()}")
        refused = {r: a for r, a in answers.items() if isinstance(a, Refused)}
        if refused and not refusable:
            raise Diverged("; ".join(f"rank {r}: {why}" for r, why in refused.items()))
        return answers

    def _round(self, kind: Kind, body: bytes) -> tuple[dict[int, Any], list[int]]:
        """(answers, ranks that gave none)."""
        self.serial += 1
        data = pack(kind, self.generation, self.serial, body)
        answers: dict[int, Any] = {}
        waiting, closed = set(self.others), set[int]()
        for _ in range(self.tries):
            for other in sorted(waiting):
                self.transport.send(other, data)
            while waiting and (came := self.transport.receive()) is not None:
                source, answer = came[0], unpack(came[1])
                if came[1] == CLOSED and source in waiting:
                    waiting.discard(source)
                    closed.add(source)
                if answer is None or answer[1:3] != (self.generation, self.serial):
                    continue  # damaged, or to a question of before
                waiting.discard(source)
                refusal = answer[0] == Kind.REFUSED
                answers[source] = Refused(answer[3].decode()) if refusal else answer[3]
            if not waiting:
                break
        return answers, sorted(waiting | closed)

    def _lose(self, ranks: Iterable[int], why: str) -> None:
        """Tell the survivors, and raise."""
        lost = set(ranks)
        self.others = [r for r in self.others if r not in lost]
        _, silent = self._round(Kind.DROP, pack_size(*sorted(lost)))
        self.rank.lost |= lost | set(silent)
        raise RankLost(sorted(self.rank.lost), why)


def _parsed(operation: tuple[Any, ...]) -> tuple[str, int, list[int]]:
    """(name, sequence, tokens); raises BadInput."""
    name, wanted = operation[0] if operation else None, {"add": 3, "append": 3}
    if name not in ("add", "append", "free", "preempt", "resume"):
        raise BadInput(f"operation {name!r}: allowed are add, append, free, preempt, resume")
    if len(operation) != wanted.get(name, 2):
        raise BadInput(f"{name} takes a sequence{' and tokens' if name in wanted else ''}")
    return name, operation[1], token_array(operation[2]).tolist() if name in wanted else []

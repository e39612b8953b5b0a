"""Tensor-parallel ranks (chapter 3.2.4): each repeats the same operations on the same state.

The driver sends the operations themselves, as JSON with a checksum. A rank computes the state behind them
and keeps it beside its own until it is told to take it. A group that is formed again takes the latest of all.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from kvproof import contract

TRIES = 4
TOKENS = {"add": 1, "append": 1, "free": 0, "preempt": 0, "resume": 0}  # arguments behind the sequence


class Seq(NamedTuple):
    tokens: tuple[int, ...]
    table: tuple[int, ...]  # empty while preempted
    start: int  # of the positions that its last step computed


class State(NamedTuple):
    """Nothing of it ever changes: a step leads to another one."""

    epoch: int
    free: tuple[int, ...]
    seqs: Mapping[int, Seq]

    def digest(self) -> str:
        rows = [(seq, len(s.tokens), s.table) for seq, s in sorted(self.seqs.items())]
        return f"{zlib.crc32(repr(rows).encode()):08x}"

    def as_json(self) -> list[Any]:
        return [self.epoch, self.free, [(seq, *s) for seq, s in self.seqs.items()]]


def from_json(epoch: int, free: list[int], rows: list[Any]) -> State:
    return State(epoch, tuple(free), {seq: Seq(tuple(t), tuple(b), start) for seq, t, b, start in rows})


def after(state: State, operations: Sequence[Sequence[Any]], size: int) -> State:
    """The state behind a step: the same on every rank that starts from the same."""
    seqs, named = dict(state.seqs), set[int]()
    for name, seq, *given in operations:
        if TOKENS.get(name) != len(given) or not isinstance(seq, int) or seq < 0 or seq in named:
            raise contract.BadInput(f"{name} {seq}: allowed are {', '.join(TOKENS)}, a sequence once a step")
        named.add(seq)
        for tokens in given:
            contract.require_tokens(tokens)
        if name == "add":
            contract.require_new(seq, seqs)
            seqs[seq] = Seq((), (), 0)
        elif seq not in seqs:
            raise contract.UnknownSequence(f"no sequence {seq}")
        elif name != "free" and bool(seqs[seq].table) == (name == "resume"):
            raise contract.Refused(f"{name} {seq}: it is {'not ' if name == 'resume' else ''}preempted")
    capacity = len(state.free) + sum(len(s.table) for s in state.seqs.values())
    left = [seq for name, seq, *_ in operations if name in ("free", "preempt")]
    free = [*state.free, *(block for seq in left for block in seqs[seq].table)]
    for name, seq, *given in operations:
        tokens, table, _ = seqs[seq]
        if name == "free":
            del seqs[seq]
        elif name == "preempt":
            seqs[seq] = Seq(tokens, (), 0)
        else:
            start = len(tokens) if table else 0
            tokens = (*tokens, *(given[0] if given else ()))
            more = (count := ceil(len(tokens) / size)) - len(table)
            if count > capacity:
                raise contract.Refused(f"{count} blocks for one sequence, each rank has {capacity}")
            if more > len(free):
                raise contract.OutOfBlocks(f"{more} blocks needed, {len(free)} free")
            seqs[seq], free = Seq(tokens, (*table, *free[:more]), start), free[more:]
    return State(state.epoch + 1, tuple(free), seqs)


def write(*message: Any) -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode()
    return b"%08x" % zlib.crc32(text) + text


def read(data: bytes) -> Any:
    """None for what is damaged."""
    return json.loads(data[8:]) if data[:8] == b"%08x" % zlib.crc32(data[8:]) else None


class Rank:
    """What one rank holds, and what it answers."""

    def __init__(self, blocks: int, size: int) -> None:
        self.blocks, self.size, self.refusing = blocks, size, False
        self.state = self.next = State(0, (), {})
        self.group = self.serial = 0  # of the last request that was answered
        self.answer = b""
        self.lost: set[int] = set()

    def handle(self, data: bytes) -> bytes | None:
        """The answer, in the same words to a repeated request; None to what is damaged or late."""
        if (message := read(data)) is None:
            return None
        group, serial, name, given = message
        if (group, serial) > (self.group, self.serial):
            if group > self.group:
                self.lost = set()
            self.group, self.serial = group, serial
            self.answer = write(group, serial, self.do(name, given))
        return self.answer if (group, serial) == (self.group, self.serial) else None

    def do(self, name: str, given: Any) -> Any:
        if name == "size":
            return self.blocks
        if name == "start":
            self.state = self.next = State(0, tuple(range(given)), {})
        elif name == "prepare":
            refuses, self.refusing = self.refusing, False
            self.next = self.state if refuses else after(self.state, given, self.size)
            return None if refuses else [self.next.epoch, self.next.digest()]
        elif name == "take":
            self.state = self.next
        elif name == "drop":
            self.next, self.lost = self.state, self.lost | set(given)
        elif name == "settle":
            self.state = self.next = from_json(*given)
        return self.state.as_json() if name == "state" else [self.state.epoch, self.state.digest()]


class PlainRanks:
    """All ranks, and the driver's work; see `kvproof.contract.RankGroup`."""

    capabilities = frozenset({"worker_view", "refusing"})

    def __init__(self, pools: Sequence[int], block_size: int, network: contract.Network) -> None:
        if not pools or min(pools) < 1 or block_size < 1:
            raise contract.BadInput(f"pools {pools} of blocks of {block_size}: all have to be positive")
        self.size, self.network = block_size, network
        self.ranks = [Rank(blocks, block_size) for blocks in pools]
        self.gone: set[int] = set()
        self._lead(range(len(pools)))
        self._ask("start", min(self._ask("size", None).values()))

    def step(self, operations: Sequence[Sequence[Any]]) -> list[int | None]:
        me = self.ranks[self.driver]
        try:
            if me.lost:
                raise contract.RankLost(sorted(me.lost), "lost before; the group has to be formed again")
            planned = after(me.state, operations, self.size)  # what cannot be done is not sent
            answers = self._ask("prepare", operations).values()
            if None in answers:
                self._ask("drop", [])
                raise contract.Refused("a rank refuses the step")
            if any(answer != [planned.epoch, planned.digest()] for answer in answers):
                self._ask("drop", [])
                raise contract.Diverged("ranks come to different tables")
            self._ask("take", None)
        except contract.RankGone as end:
            self._without(end.rank)
            raise
        return [0 if name in ("add", "resume") else None for name, *_ in operations]

    def form(self) -> None:
        members = [r for r in range(len(self.ranks)) if self._runs(r)]
        self.gone |= set(range(len(self.ranks))) - set(members)
        if not members:
            raise contract.RankLost(range(len(self.ranks)), "no rank is left")
        self._lead(members)
        try:
            self._ask("settle", max(self._ask("state", None).values(), key=lambda state: state[0]))
        except contract.RankLost as error:
            self.gone |= set(error.ranks)
            raise
        except contract.RankGone as end:
            self._without(end.rank)
            raise

    def _lead(self, members: Sequence[int]) -> None:
        """The lowest member drives, with a number that no driver before it had."""
        self.driver, self.others = members[0], list(members[1:])
        self.group, self.serial = 1 + max(self.ranks[r].group for r in members), 0
        self.ranks[self.driver].group, self.ranks[self.driver].lost = self.group, set()

    def _runs(self, rank: int) -> bool:
        return rank not in self.gone and self.network.running(rank)

    def _without(self, driver: int) -> None:
        """The others work on what has come, and then wait in vain."""
        self.gone.add(driver)
        while self._work() or self.network.wait():
            pass
        for rank in filter(self._runs, range(len(self.ranks))):
            self.ranks[rank].lost.add(driver)

    def _work(self) -> bool:
        """All but the driver answer what has come; False if nothing has."""
        worked = False
        for rank in [r for r in range(len(self.ranks)) if r != self.driver and self._runs(r)]:
            try:
                while self._runs(rank) and (came := self.network.receive(rank)):
                    worked = True
                    if answer := self.ranks[rank].handle(came[1]):
                        self.network.send(rank, came[0], answer)
            except contract.RankGone:
                self.gone.add(rank)
        return worked

    def _ask(self, name: str, given: Any) -> dict[int, Any]:
        """Each rank's answer, the driver's own too: it is the first to do what it asks for."""
        answers = {self.driver: json.loads(json.dumps(self.ranks[self.driver].do(name, given)))}
        self.serial += 1
        waiting, data = set(self.others), write(self.group, self.serial, name, given)
        for _ in range(TRIES):
            for rank in sorted(waiting):
                self.network.send(self.driver, rank, data)
            while waiting:
                if came := self.network.receive(self.driver):
                    group, serial, answer = read(came[1]) or (0, 0, None)
                    if (group, serial) == (self.group, self.serial):
                        answers[came[0]] = answer
                        waiting.discard(came[0])
                elif not self._work() and not self.network.wait():
                    break
        if waiting:
            self.others = [r for r in self.others if r not in waiting]
            self.ranks[self.driver].lost |= waiting
            self._ask("drop", sorted(waiting))
            raise contract.RankLost(sorted(self.ranks[self.driver].lost), f"no answer to {name}")
        return answers

    def table(self, rank: int, seq: int) -> list[int]:
        return list(self._live(rank, seq).table)

    def digest(self, rank: int) -> bytes:
        return self.ranks[rank].state.digest().encode()

    def epoch(self, rank: int) -> int:
        return self.ranks[rank].state.epoch

    def free_blocks(self, rank: int) -> int:
        return len(self.ranks[rank].state.free)

    def lost(self, rank: int) -> list[int]:
        return sorted(self.ranks[rank].lost)

    def view(self, rank: int, seq: int) -> tuple[int, Sequence[int]]:
        start = self._live(rank, seq).start
        return start, self._live(rank, seq).tokens[start:]

    def refuse(self, rank: int) -> None:
        self.ranks[rank].refusing = True

    def _live(self, rank: int, seq: int) -> Seq:
        if seq not in (seqs := self.ranks[rank].state.seqs):
            raise contract.UnknownSequence(f"no sequence {seq!r}")
        return seqs[seq]

"""A network in memory: it counts messages, does to them what a history says, and ends ranks."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvproof.contract import RankGone

MOST_WAITS = 200
"""A group that waits so often in one operation waits for ever."""
MOST_EVENTS = 20_000


class Hung(Exception):
    """The group does not come to an end."""


def damaged(data: bytes, fault: Mapping[str, Any]) -> bytes:
    """The message with one bit changed; for `noise` as many other bytes."""
    if fault.get("kind") == "noise":
        return random.Random(fault["message"]).randbytes(len(data))
    at = fault.get("at", 0) % max(len(data), 1)
    return data[:at] + bytes([data[at] ^ 1 << fault.get("bit", 0)]) + data[at + 1 :]


def information(messages: Sequence[bytes]) -> int:
    """Bytes that the messages take at most when nothing in them is said twice."""
    return len(zlib.compress(b"".join(messages), 9)) if messages else 0


class _Letter(NamedTuple):
    """A message on its way."""

    source: int
    data: bytes
    decision: int
    heard: frozenset[int]
    """Ranks whose news of this decision it can carry; none in one that is noise."""


class SimulatedNetwork:
    """Queues of messages between ranks; see `kvproof.contract.Network`.

    Faults hold for one operation. Of messages, by number in the order of sending (from 0): `drop`, `repeat`,
    `damage`, `noise`, `delay` by `ticks` waits (more than 1 is beyond the timeout), `behind` the next message
    to the same rank. Of ranks: `kill` and `stop` once the rank has sent and received `events` messages.
    """

    def __init__(self, ranks: int) -> None:
        self.queues: list[deque[_Letter]] = [deque() for _ in range(ranks)]
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.messages = self.bytes = self.waits = self.calls = 0
        self._late: list[tuple[int, int, _Letter]] = []
        self._behind: dict[int, list[_Letter]] = {}
        self._tick = 0
        self._of_message: dict[int, Mapping[str, Any]] = {}
        self._of_rank: dict[int, Mapping[str, Any]] = {}
        self._events = [0] * ranks
        self._decision = 0
        self.begin()

    def begin(self) -> None:
        """A new decision is about to be made: nobody has heard of it."""
        self._decision += 1
        self._heard = [{rank} for rank in range(len(self.queues))]
        self._came: list[list[bytes]] = [[] for _ in self.queues]

    def heard(self) -> dict[int, list[int]]:
        """By rank: from whom something has come to it since the decision began, also through others."""
        return {rank: sorted(those) for rank, those in enumerate(self._heard)}

    def told(self, rank: int) -> int:
        """Bytes of information that came to the rank since the decision began."""
        return information(self._came[rank])

    def arm(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """An operation begins."""
        self.messages = self.bytes = self.waits = self.calls = 0
        self._events = [0] * len(self.queues)
        self._of_message = {f["message"]: f for f in faults if "message" in f}
        self._of_rank = {f["rank"]: f for f in faults if "rank" in f}
        for rank in range(len(self.queues)):
            self._fall(rank)

    def _fall(self, rank: int) -> None:
        """The rank dies or stops, if it is time."""
        fault = self._of_rank.get(rank)
        if fault is not None and self._events[rank] >= fault["events"]:
            (self.dead if fault["kind"] == "kill" else self.stopped).add(rank)

    def _called(self, rank: int) -> None:
        self.calls += 1
        if self.calls > MOST_EVENTS:
            raise Hung(f"more than {MOST_EVENTS} calls of the network in one operation")
        if rank in self.dead:
            raise RankGone(rank)

    # ------------------------------------------------------------ what a group calls

    def send(self, source: int, target: int, data: bytes) -> None:
        self._called(source)
        data = bytes(data)
        fault = self._of_message.get(self.messages, {})
        self.messages += 1
        self.bytes += len(data)
        self._events[source] += 1
        kind = fault.get("kind")
        if kind in ("damage", "noise"):
            data = damaged(data, fault)
        news = frozenset() if kind == "noise" else frozenset(self._heard[source])
        letter = _Letter(source, data, self._decision, news)
        if kind == "delay":
            self._late.append((self._tick + fault["ticks"], target, letter))
        elif kind == "behind":
            self._behind.setdefault(target, []).append(letter)
        elif kind != "drop":
            self.queues[target].append(letter)
            self.queues[target].extend(self._behind.pop(target, ()))
        if kind == "repeat":
            self.queues[target].append(letter)
        self._fall(source)

    def receive(self, rank: int) -> tuple[int, bytes] | None:
        self._called(rank)
        if not self.queues[rank]:
            return None
        self._events[rank] += 1
        letter = self.queues[rank].popleft()
        if letter.heard and letter.decision == self._decision:
            self._heard[rank] |= letter.heard
            self._came[rank].append(letter.data)
        self._fall(rank)
        return letter.source, letter.data

    def resume(self, rank: int) -> None:
        """A rank that stopped goes on."""
        self.stopped.discard(rank)

    def running(self, rank: int) -> bool:
        return rank not in self.dead and rank not in self.stopped

    def wait(self) -> bool:
        self._tick += 1
        self.waits += 1
        if self.waits > MOST_WAITS:
            raise Hung(f"it has waited {MOST_WAITS} times in one operation")
        due = [late for late in self._late if late[0] <= self._tick]
        self._late = [late for late in self._late if late[0] > self._tick]
        found = [(target, letter) for _, target, letter in due]
        found += [(target, letter) for target, held in self._behind.items() for letter in held]
        self._behind = {}
        for target, letter in found:
            self.queues[target].append(letter)
        return bool(found)

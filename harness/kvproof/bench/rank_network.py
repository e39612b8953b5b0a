"""A network without faults that counts: messages, bytes and what they consist of, depth of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from kvproof.bench.subject import Wrong

Parts: TypeAlias = Callable[[bytes], dict[str, int]]
"""What a message consists of: bytes by name, such as tokens, tables, digest."""


class CountedNetwork:
    """Queues in memory; see `kvproof.contract.Network`. Counts hold since `begin`.

    messages, bytes: of all ranks. parts: bytes by what they are. depth: messages that waited for one
    another in the longest chain of them. busiest: messages that one rank sent or received.
    """

    def __init__(self, ranks: int, parts: Parts | None = None) -> None:
        self.ranks = ranks
        self._queues: list[deque[tuple[int, int, bytes]]] = [deque() for _ in range(ranks)]
        self._parts = parts
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.messages = self.bytes = 0
        self.parts: dict[str, int] = {}
        self._at = [0] * len(self._queues)
        self._handled = [0] * len(self._queues)

    @property
    def depth(self) -> int:
        return max(self._at)

    @property
    def busiest(self) -> int:
        return max(self._handled)

    def send(self, source: int, target: int, data: bytes) -> None:
        data = bytes(data)
        self._queues[target].append((self._at[source] + 1, source, data))
        self._handled[source] += 1
        self.messages += 1
        self.bytes += len(data)
        if self._parts is not None:
            found = self._parts(data)
            if sum(found.values()) != len(data):
                named = sum(found.values())
                raise Wrong(f"message_parts names {named} of the {len(data)} bytes of a message")
            for name, size in found.items():
                self.parts[name] = self.parts.get(name, 0) + size

    def receive(self, rank: int) -> tuple[int, bytes] | None:
        if not self._queues[rank]:
            return None
        depth, source, data = self._queues[rank].popleft()
        self._at[rank] = max(self._at[rank], depth)
        self._handled[rank] += 1
        return source, data

    def running(self, rank: int) -> bool:
        return True

    def wait(self) -> bool:
        return False

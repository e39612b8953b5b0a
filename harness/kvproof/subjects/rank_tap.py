"""The tap in a rank process: counts its messages, does to them what a history says, ends the process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from kvproof.subjects.network import damaged

LEAVING = 0.05
"""Seconds in which a message that was sent has left the process, before that ends."""
SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP"}


class RankTap:
    """See `kvproof.contract.Tap`. Faults hold for one operation, as those of the simulated network.

    pause: seconds of a tick; a message that is later than one is sent again by whoever waits for it.
    """

    def __init__(self, pause: float) -> None:
        self.pause = pause
        self.messages = self.events = 0
        self._faults: dict[int, Mapping[str, Any]] = {}
        self._end: Mapping[str, Any] | None = None
        self._behind: dict[int, list[bytes]] = {}
        self._lock = threading.Lock()
        self._letters: list[tuple[int, bytes]] = []
        self._sent = [0, 0]
        """Messages and bytes."""

    def arm(self, faults: Mapping[int, Mapping[str, Any]], end: Mapping[str, Any] | None) -> None:
        """An operation begins. faults: by number of the message, of those that this rank sends."""
        with self._lock:
            self.messages = self.events = 0
            self._faults, self._end, self._behind = dict(faults), end, {}

    def sent(self) -> tuple[int, int, list[tuple[int, bytes]]]:
        """Messages and bytes since the last time; (target, data) of those neither lost nor noise."""
        with self._lock:
            messages, size = self._sent
            letters, self._letters, self._sent = self._letters, [], [0, 0]
            return messages, size, letters

    def outgoing(self, target: int, data: bytes) -> Sequence[tuple[float, bytes]]:
        with self._lock:
            fault = self._faults.get(self.messages, {})
            self.messages += 1
            self._sent = [self._sent[0] + 1, self._sent[1] + len(data)]
            kind = fault.get("kind")
            if kind not in ("drop", "noise"):
                self._letters.append((target, bytes(data)))
            if kind == "drop":
                return []
            if kind == "behind":
                self._behind.setdefault(target, []).append(data)
                return []
            if kind == "delay":
                return [((fault["ticks"] - 0.5) * self.pause, data)]
            sent = [damaged(data, fault) if kind in ("damage", "noise") else data]
            sent += [data] if kind == "repeat" else []
            return [(0.0, d) for d in [*sent, *self._behind.pop(target, [])]]

    def passed(self) -> None:
        with self._lock:
            self.events += 1
            if self._end is not None and self.events == self._end["events"]:
                time.sleep(LEAVING)
                os.kill(os.getpid(), getattr(signal, SIGNALS[self._end["kind"]]))

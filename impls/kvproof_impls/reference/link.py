"""Messages of a rank process over one gloo group, and the driver's end of it (chapter 3.2.4)."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch

from kvproof.contract import Tap

from .driver import CLOSED

dist: Any = import_module("torch.distributed")  # much of what is used here has no types

FRAME = 512
"""Bytes of the first part of a message: its length, and as much of it as there is room for."""
_HEAD = 8
MOST = 1 << 30
"""No message is longer."""
BEAT = b"beat"
"""Sent while no step is under way, so that a driver that is idle is told from one that is stuck."""
STOP = b""
MOST_UNDER_WAY = 16
"""Parts of messages to a rank that are kept until they are sent; one with so many is stuck."""
STARTING = 60.0
"""Seconds in which all come for the first time; those that form the group again are there already."""
FOREVER = timedelta(days=1000)


class Link:
    """Messages between the members of one gloo group.

    tap: sees every message but STOP and BEAT, and may change it.
    """

    def __init__(
        self,
        store: Any,
        generation: int,
        members: Sequence[int],
        rank: int,
        timeout: float,
        tap: Tap | None = None,
    ) -> None:
        self.members, self.timeout, self.tap = list(members), timeout, tap
        self.limit = timedelta(seconds=timeout)
        place = dist.PrefixStore(f"kvproof/{generation}", store)
        coming = timedelta(seconds=STARTING if generation == 1 else 2 * timeout)
        self.group = dist.ProcessGroupGloo(place, self.members.index(rank), len(members), coming)
        self._sending = threading.Lock()
        # gloo sends when the target receives: to wait for a stuck one would stop all others too.
        self._under_way: dict[int, deque[Any]] = {r: deque(maxlen=MOST_UNDER_WAY) for r in self.members}

    def send(self, target: int, data: bytes) -> None:
        """Hand the message to gloo; raises RuntimeError when the target is known to be dead."""
        if self.tap is None or data in (STOP, BEAT):
            self._send(target, data)
            return
        for seconds, changed in self.tap.outgoing(target, data):
            if seconds:
                late = threading.Timer(seconds, self._late, (target, changed))
                late.daemon = True
                late.start()
            else:
                self._send(target, changed)
        self.tap.passed()

    def _late(self, target: int, data: bytes) -> None:
        with contextlib.suppress(RuntimeError):  # nobody waits for it any more
            self._send(target, data)

    def _send(self, target: int, data: bytes) -> None:
        whole = len(data).to_bytes(_HEAD, "little") + data
        whole += bytes(max(FRAME - len(whole), 0))
        place = self.members.index(target)
        with self._sending:
            for part in (whole[:FRAME], whole[FRAME:]):
                if part:
                    tensor = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                    self._under_way[target].append(self.group.send([tensor], place, 0))

    def flush(self, target: int) -> None:
        """Wait until the last message is sent; raises RuntimeError when it cannot be within the timeout."""
        if self._under_way[target]:
            self._under_way[target][-1].wait(self.limit)

    def receive(self, source: int, limit: timedelta | None = None) -> bytes:
        """The next message from the source; raises RuntimeError when it is dead, or silent for the limit."""
        place = self.members.index(source)
        first = torch.empty(FRAME, dtype=torch.uint8)
        self.group.recv([first], place, 0).wait(limit or self.limit)
        data = bytes(first.tolist())
        size = int.from_bytes(data[:_HEAD], "little")
        if size > MOST:
            raise RuntimeError(f"rank {source} sends {size} bytes, at most {MOST} are allowed")
        if size > FRAME - _HEAD:
            rest = torch.empty(size + _HEAD - FRAME, dtype=torch.uint8)
            self.group.recv([rest], place, 0).wait(self.limit)
            data += bytes(rest.tolist())
        data = data[_HEAD : _HEAD + size]
        if self.tap is not None and data not in (STOP, BEAT):
            self.tap.passed()
        return data


class Asking:
    """The driver's transport: a thread listens to each rank, for as long as that lives."""

    def __init__(self, link: Link, others: Sequence[int], pause: float) -> None:
        self.link, self.others, self.pause = link, others, pause
        self.answers: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self.idle, self.closed = threading.Event(), threading.Event()
        self.closed_by: set[int] = set()
        for other in others:
            threading.Thread(target=self._listen, args=(other,), daemon=True).start()
        if others:
            threading.Thread(target=self._beat, daemon=True).start()

    def _listen(self, other: int) -> None:
        with contextlib.suppress(RuntimeError):
            while True:
                self.answers.put((other, self.link.receive(other, FOREVER)))
        self.closed_by.add(other)
        self.answers.put((other, CLOSED))

    def _beat(self) -> None:
        while not self.closed.wait(self.pause):
            for other in self.others:
                with contextlib.suppress(RuntimeError):  # the next step tells
                    if self.idle.is_set() and not self.closed.is_set():
                        self.link.send(other, BEAT)

    def send(self, target: int, data: bytes) -> None:
        try:
            self.link.send(target, data)
        except RuntimeError:  # dead
            self.answers.put((target, CLOSED))

    def receive(self) -> tuple[int, bytes] | None:
        try:
            return self.answers.get(timeout=self.pause)
        except queue.Empty:
            return None

    def close(self) -> None:
        """No more beats."""
        self.closed.set()

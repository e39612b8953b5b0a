"""One process of a group under judgement: takes orders, one after another, and answers each.

It is used for one history after another, with a rank of its own in each, until it is ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from kvproof.contract import RankLost, UnknownSequence
from kvproof.subjects.drive import describe
from kvproof.subjects.find import find
from kvproof.subjects.parent import die_with_parent
from kvproof.subjects.rank_tap import RankTap

TICKS = 4
"""Pauses in a timeout."""


class RankWorker:
    """Holds a rank of one history. Every public method is an order."""

    def __init__(self, spec: str) -> None:
        self.make: Callable[..., Any] = find(spec).factory()
        self.process: Any = None
        self.serving: threading.Thread | None = None
        self.failed: BaseException | None = None
        """What `serve` ended with, where that is no loss of a rank."""

    def ready(self) -> None:
        """It answers: it is there."""

    def open(
        self, rank: int, world: int, num_blocks: int, block_size: int, rendezvous: str, timeout: float
    ) -> dict[str, Any]:
        """Make the rank; answers what it says of itself."""
        self.tap = RankTap(timeout / TICKS)
        self.failed = None
        self.process = self.make(
            rank, world, num_blocks, block_size, rendezvous, timeout=timeout, tap=self.tap
        )
        self._serve()
        return {
            "capabilities": sorted(map(str, self.process.capabilities)),
            "members": [n for n in dir(self.process) if not n.startswith("_")],
        }

    def _serve(self) -> None:
        if not self.process.drives:
            self.serving = threading.Thread(target=self._serving, daemon=True)
            self.serving.start()

    def _serving(self) -> None:
        try:
            self.process.serve()
        except RankLost:
            pass  # `lost` says who
        except Exception as error:
            self.failed = error

    def arm(self, faults: dict[int, Any], end: dict[str, Any] | None) -> None:
        self.tap.arm(faults, end)

    def sent(self) -> tuple[int, int, list[tuple[int, bytes]]]:
        """What the tap saw since the last time."""
        return self.tap.sent()

    def step(self, operations: list[Any]) -> list[Any]:
        return list(self.process.step(operations))

    def settled(self, limit: float) -> bool:
        """`serve` has ended, at the latest after so many seconds."""
        if self.serving is not None:
            self.serving.join(limit)
            if self.serving.is_alive():
                return False
            self.serving = None
        if self.failed is not None:
            raise self.failed
        return True

    def stop(self) -> None:
        if self.process.drives:
            self.process.stop()

    def form(self) -> bool:
        """Whether it drives from now on."""
        self.process.form()
        self._serve()
        return bool(self.process.drives)

    def state(self, seqs: list[int], views: bool) -> dict[str, Any]:
        """What the rank holds."""
        rank, tables, seen = self.process, {}, {}
        for seq in seqs:
            with contextlib.suppress(UnknownSequence):
                tables[seq] = list(rank.table(seq))
            if views and tables.get(seq):
                with contextlib.suppress(UnknownSequence):
                    seen[seq] = rank.view(seq)
        found = {"epoch": rank.epoch(), "digest": bytes(rank.digest()), "free": rank.free_blocks()}
        return {**found, "lost": list(rank.lost()), "tables": tables, "views": seen}

    def evict(self, count: int) -> list[int]:
        return list(self.process.evict(count))

    def refuse(self) -> None:
        self.process.refuse()

    def close(self, limit: float) -> bool:
        """Done with this history; False if the process is of no use any more."""
        with contextlib.suppress(Exception):
            self.stop()
        with contextlib.suppress(Exception):
            if not self.settled(limit):
                return False
        self.process = None
        return True


def serve(orders: Connection) -> None:
    """Follow orders until end-of-file; what comes first is the implementation."""
    worker: RankWorker | None = None
    try:
        spec = orders.recv()
    except (EOFError, OSError):
        return
    while True:
        try:
            number, name, args = orders.recv()
        except (EOFError, OSError):
            return
        try:
            worker = worker or RankWorker(spec)
            answer: tuple[Any, ...] = ("ok", getattr(worker, name)(*args))
        except RankLost as error:
            answer = ("RankLost", str(error), list(error.ranks))
        except (Exception, SystemExit) as error:
            answer = (type(error).__name__, str(error), describe(error))
        try:
            orders.send((number, *answer))
        except (BrokenPipeError, OSError):
            return


def main(orders: Connection) -> None:
    """Of a process that the harness has started."""
    import os

    die_with_parent()
    try:
        serve(orders)
    finally:
        os._exit(0)  # threads that wait for a dead rank must not keep the process

"""Processes for groups of ranks: started once, used again for one history after another.

They are forked from a server that has imported torch already, or are those that torchrun has started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

from kvproof.contract import Refused
from kvproof.subjects import under_torchrun
from kvproof.subjects.rank_worker import main

WARM = ("torch.distributed", "kvproof.subjects.rank_worker")
"""What the server imports."""
SCRATCH = "KVPROOF_SCRATCH"
"""A folder that somebody else removes: who uses it may be killed."""
WARMING = 100.0
"""Seconds for that."""


@dataclass
class Member:
    """One process, and the way to it."""

    orders: Connection
    process: Any = None
    """None for one of torchrun's."""
    asked: int = 0
    """Orders so far: an answer to an earlier one is of no interest any more."""

    def dead(self) -> bool:
        return self.process is not None and not self.process.is_alive()

    def stopped(self) -> bool:
        if self.process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        return False

    def signal(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, getattr(signal, name))

    def end(self) -> None:
        self.orders.close()
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def send(self, name: str, *args: Any) -> None:
        self.asked += 1
        with contextlib.suppress(OSError):  # dead: so is its answer
            self.orders.send((self.asked, name, args))

    def answer(self, seconds: float) -> tuple[Any, ...] | None:
        """The answer to the last order; None if it does not come in time.

        Raises:
            EOFError: the process has ended.
        """
        if not wait([self.orders], seconds):
            return None
        try:
            number, *answer = self.orders.recv()
        except OSError:
            raise EOFError from None
        return tuple(answer) if number == self.asked else None


@dataclass
class Crew:
    """The processes of one implementation."""

    spec: str
    idle: list[Member] = field(default_factory=list)
    world: int = 0
    """Of torchrun's group; 0 where any number can be started."""
    _groups: int = 0
    _folder: Any = None
    _store: Any = None

    def __post_init__(self) -> None:
        if under_torchrun.here():
            self.idle = [Member(orders) for orders in under_torchrun.collect()]
            self.world = len(self.idle)
            for member in self.idle:
                member.orders.send(self.spec)
            return
        # The first one waits for the server to import torch, which takes longer than a call may.
        self.idle = [self._start()]
        self.idle[0].send("ready")
        with contextlib.suppress(EOFError):  # whoever uses it sees that
            self.idle[0].answer(WARMING)

    def take(self, world: int) -> list[Member]:
        """So many processes, by rank.

        Raises:
            Refused: torchrun has started another number of them.
        """
        if self.world and world != self.world:
            raise Refused(f"a group of {world} ranks: torchrun has started {self.world}")
        while len(self.idle) < world:
            self.idle.append(self._start())
        taken, self.idle = self.idle[:world], self.idle[world:]
        return taken

    def give_back(self, members: list[Member]) -> None:
        self.idle = members + self.idle

    def _start(self) -> Member:
        context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            multiprocessing.get_context("forkserver").set_forkserver_preload(list(WARM))
        here, there = context.Pipe()
        process: Any = context.Process(target=main, args=(there,), daemon=True)  # type: ignore[attr-defined]
        # The server's socket goes where files are removed.
        before, tempfile.tempdir = tempfile.tempdir, os.environ.get(SCRATCH, tempfile.tempdir)
        try:
            process.start()
        finally:
            tempfile.tempdir = before
        there.close()
        here.send(self.spec)
        return Member(here, process)

    def rendezvous(self) -> str:
        """An address of a group's own."""
        self._groups += 1
        if self.world:
            self._store = under_torchrun.new_store()
            return f"tcp://{self._store.host}:{self._store.port}"
        return (Path(self._scratch()) / f"group-{self._groups}").as_uri()

    def _scratch(self) -> str:
        if SCRATCH in os.environ:
            return os.environ[SCRATCH]
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kvproof-", ignore_cleanup_errors=True)
        return str(self._folder.name)

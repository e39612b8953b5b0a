"""Processes that hold a rank each: started once, given work over pipes, ended with a `with`."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from kvproof.bench.subject import Unsupported, Wrong

PRELOAD = ["numpy", "torch.distributed", "kvproof.bench.rank_child"]
"""What the process that all others are forked from has imported; what is not here is left out."""
SILENCE_S = 120.0
"""Who says nothing for so long hangs."""


@dataclass(frozen=True)
class Post:
    """What a process has from the one that started it.

    doom: an event that tells it to end in the middle of a step. folder: by whose files groups meet.
    """

    rank: int
    pipe: Connection
    doom: Any
    folder: str

    def meeting(self, name: str) -> str:
        """An address for the rendezvous of a group."""
        return (Path(self.folder) / name).as_uri()


class Crew:
    """`size` processes in which `work(post, ...)` runs; a context manager."""

    def __init__(self, size: int, work: Callable[..., None], *arguments: Any) -> None:
        self.size, self.work, self.arguments = size, work, arguments
        self.posts: list[Post] = []
        """Their pipes are our ends."""
        self._processes: list[Any] = []

    def __enter__(self) -> Crew:
        context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        if sys.platform != "win32":
            context.set_forkserver_preload(PRELOAD)
        self._folder = tempfile.TemporaryDirectory(prefix="kvproof-ranks-", ignore_cleanup_errors=True)
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            post = Post(rank, ours, context.Event(), self._folder.name)
            arguments = (replace(post, pipe=theirs), *self.arguments)
            process = context.Process(target=self.work, args=arguments, daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()
            self.posts.append(post)
            self._processes.append(process)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()  # nobody has anything to put in order
        for process, post in zip(self._processes, self.posts, strict=True):
            process.join()
            post.pipe.close()
        self._folder.cleanup()

    def told(self, ranks: Collection[int]) -> list[tuple[int, Any]]:
        """What some of these ranks say next, (rank, None) for one that has ended.

        Raises:
            Wrong: nobody says anything. Unsupported, Wrong: what a rank has raised.
        """
        ready = wait([self.posts[rank].pipe for rank in ranks], SILENCE_S)
        if not ready:
            raise Wrong(f"none of the ranks {sorted(ranks)} has said anything for {SILENCE_S:g} s: they hang")
        found: list[tuple[int, Any]] = []
        for rank in list(ranks):
            if self.posts[rank].pipe in ready:
                try:
                    said = self.posts[rank].pipe.recv()
                except (EOFError, ConnectionError):
                    said = None
                if isinstance(said, Unsupported | Wrong):
                    raise said
                found.append((rank, said))
        return found

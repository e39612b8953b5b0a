"""Processes pass a baton: each measures a point of the matrix, and waits while the others do the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
TIDY_S = 2.0
"""For a process that is broken off, to end its own and remove its files."""
READY = "\x1eready"
"""Line on the standard output of a process that waits; a line on its standard input lets it go on."""


def waiting() -> Callable[[object], None]:
    """What a process that measures calls before each point; it returns when it is that one's turn.

    Raises:
        KeyboardInterrupt: from the call, if who passes the baton is gone.
    """
    # Copies of the streams: pytest, run in process, takes away the descriptors as well as the names.
    gone_on = open(os.dup(0), encoding="utf-8")  # noqa: SIM115 - open until the process ends
    says = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115

    def wait(_: object) -> None:
        says.write(READY + "\n")
        says.flush()
        if not gone_on.readline():
            raise KeyboardInterrupt

    return wait


@dataclass
class Player:
    """A process that waits before each point, in a session of its own.

    longest_s: for its start, and for each point; one that takes longer hangs, and is ended.
    said: the lines of its output, besides READY.
    """

    process: subprocess.Popen[str]
    longest_s: float
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._reap, daemon=True).start()

    def ready(self) -> bool:
        """Whether it waits; else it has ended."""
        late = threading.Timer(self.longest_s, self._late)
        late.start()
        try:
            for line in self.process.stdout or ():
                words, ready, _ = line.rstrip("\n").partition(READY)
                self.said += [words] if words else []
                if ready:
                    return True
        finally:
            late.cancel()
        return False

    def go(self) -> bool:
        """Let it measure a point; whether it waits again."""
        try:
            if self.process.stdin:
                self.process.stdin.write("\n")
                self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended
        return self.ready()

    def end(self) -> None:
        """End it, unless it has ended by itself; first as from the keyboard, so that it can tidy up."""
        for number in (signal.SIGINT, KILL):
            if self.process.poll() is None:
                self._send(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(TIDY_S)
        self.process.communicate()

    def _late(self) -> None:
        self.said.append(f"it was over one point for more than {self.longest_s:g} s, and was ended")
        self._send(KILL)

    def _reap(self) -> None:
        """End whoever it leaves behind: that one would keep its output open."""
        self.process.wait()
        self._send(KILL)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, number)
            else:
                self.process.kill()


def alternate(
    starts: Sequence[Callable[[], subprocess.Popen[str]]], longest_s: float
) -> list[tuple[int, list[str]]]:
    """Start processes and let each go on by a point, one after another, until all have ended.

    Args:
        starts: each starts one, in a session of its own, with pipes for its standard input and output.
        longest_s: as in `Player`.

    Returns:
        Of each its exit status, negative for a signal, and the lines that it has written.
    """
    players: list[Player] = []
    try:
        for start in starts:
            players.append(Player(start(), longest_s))
            players[-1].ready()
        going = list(players)
        while going:
            going = [player for player in going if player.go()]
        return [(player.process.wait(), player.said) for player in players]
    finally:
        for player in players:
            player.end()

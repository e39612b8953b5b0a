"""Processes pass a baton: each measures a point of the matrix, and waits while the others do the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    """A process that waits before each point.

    said: the lines of its output, besides READY.
    """

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def ready(self) -> bool:
        """Whether it waits; else it has ended."""
        for line in self.process.stdout or ():
            if line.rstrip("\n") == READY:
                return True
            self.said.append(line.rstrip("\n"))
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


def alternate(starts: Sequence[Callable[[], subprocess.Popen[str]]]) -> list[list[str]]:
    """Start processes and let each go on by a point, one after another, until all have ended.

    Args:
        starts: each starts one, with pipes for its standard input and output.

    Returns:
        Of each the lines that it has written.
    """
    players: list[Player] = []
    try:
        for start in starts:
            players.append(Player(start()))
            players[-1].ready()
        going = list(players)
        while going:
            going = [player for player in going if player.go()]
    finally:
        for player in players:
            player.process.kill()  # has ended, unless this was broken off
            player.process.communicate()
    return [player.said for player in players]

"""For engines that call the model inside their own loop: each of its calls becomes a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Row = tuple[int, int, int, list[int]]


class Loop:
    """Runs an engine's loop in a thread that stands still where it hands over: in a call of the model, or
    between two steps. The adapter goes on while it stands still, so no two of them run at once."""

    def __init__(self) -> None:
        self.over = False
        self.rows: list[Row] = []
        self.tokens: list[int] = []
        self.error: BaseException | None = None
        self.handed, self.resumed = threading.Semaphore(0), threading.Semaphore(0)

    def start(self, loop: Callable[[], Any]) -> None:
        """Begin `loop`, called again and again; it runs until it hands over for the first time."""
        threading.Thread(target=self._run, args=(loop,), daemon=True).start()
        self._wait()

    def _run(self, loop: Callable[[], Any]) -> None:
        try:
            while not self.over:
                loop()
        except BaseException as error:  # raised where the adapter waits
            self.error = error
        self.handed.release()

    def _wait(self) -> None:
        self.handed.acquire()
        if self.error is not None:
            raise RuntimeError(f"the engine's loop ended: {self.error!r}") from self.error

    def hand_over(self, rows: list[Row]) -> list[int]:
        """Called by the engine: the tokens of these rows. No rows: it stands between two steps."""
        self.rows = rows
        self.handed.release()
        self.resumed.acquire()
        if self.over:
            raise SystemExit
        return self.tokens

    def go_on(self, tokens: list[int]) -> list[Row]:
        """Called by the adapter: feed the last rows, and run to where it hands over again; answers its rows.

        Raises:
            RuntimeError: the loop has ended with an error, which is its cause.
        """
        self.tokens = tokens
        self.resumed.release()
        self._wait()
        return self.rows

    def close(self) -> None:
        """End the thread."""
        self.over = True
        self.resumed.release()

"""For engines that call the model inside their own loop: each of its calls becomes a plan."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kvproof.contract import BadInput, Refused, require_new, require_tokens

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


class InsideScheduler:
    """A scheduler over a `Loop`; an adapter has `request`, `drop`, `ended`, `output` and `free_blocks`."""

    loop: Loop

    def __init__(self, loop: Loop, play: Callable[[], Any]) -> None:
        self.loop, self.requests, self.live, self.aborted = loop, dict[int, Any](), set[int](), {-1}
        self.asked, self.planned, self.ahead = list[Row](), list[Row](), list[Row]()
        self.victims = list[int]()
        """For the adapter to fill."""
        loop.start(play)

    def __del__(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    def request(self, rid: int, tokens: list[int], max_new: int) -> Any:
        """The engine's request, queued; ValueError: the engine refuses it."""
        raise NotImplementedError

    def drop(self, request: Any) -> None:
        """End a request early."""
        raise NotImplementedError

    def ended(self, request: Any) -> bool:
        """The engine has finished it."""
        raise NotImplementedError

    def submit(self, rid: int, tokens: list[int], max_new: int, priority: int = 0) -> None:
        require_new(rid, self.live)
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        try:
            self.requests[rid] = self.request(rid, list(tokens), max_new)
        except ValueError as error:  # how engines refuse
            raise Refused(str(error)) from None
        self.live.add(rid)
        self.aborted.discard(rid)

    def has_work(self) -> bool:
        return bool(self.live)

    def plan(self) -> list[Row]:
        self.asked = self.ahead or self.loop.go_on([])
        self.planned = [row for row in self.asked if row[0] not in self.aborted]
        return self.planned

    def feed(self, tokens: list[int]) -> list[int]:
        fed = iter(tokens)  # who was aborted before the plan has a row in the engine's call, and no token
        answer = [next(fed) if row in self.planned else 0 for row in self.asked]
        self.ahead = self.loop.go_on(answer) if self.asked else []
        ended = [rid for rid, *_ in self.planned if rid in self.live and self.ended(self.requests[rid])]
        self.live.difference_update(ended)
        return ended

    def abort(self, rid: int) -> None:
        if rid in self.live:
            self.live.discard(rid)
            self.aborted.add(rid)
            self.drop(self.requests[rid])

    def preempted(self) -> list[int]:
        victims, self.victims[:] = list(self.victims), []
        return victims

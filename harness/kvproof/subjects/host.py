"""The parent's side: starts a worker, sends it histories, kills it when a call hangs."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvproof.records import Case, Observation
from kvproof.subjects.crew import SCRATCH
from kvproof.subjects.find import Implementation, SubjectError
from kvproof.subjects.growth import Growth
from kvproof.subjects.worker import BEAT, send

CALL_LIMIT = 10.0
"""Seconds that one call may take by default."""
GROWTH_LIMIT = 60.0
"""The same for setting up one size of those over which a cost is measured, and for all their rounds."""
KERNEL_CALL_LIMIT = 120.0
"""The same for a call of a kernel, whose first one may compile it."""
MOST_BYTES = 1 << 30
"""No answer is longer."""
OPEN_LIMIT = 120.0
"""Seconds for importing the subject: real engines import slowly."""


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    observations: tuple[Observation, ...]
    end: Literal["complete", "error", "timeout", "died", "unserved"] = "complete"
    """unserved: the factory refuses pools of this shape."""
    step: int = -1
    """The operation it ended at, -1 the factory; of no meaning when complete."""
    detail: str = ""


def ended(seen: tuple[Observation, ...]) -> Outcome:
    """The outcome of a history that the subject has answered to its end, or to an error."""
    if seen and seen[0].outcome == "unserved":
        return Outcome((), "unserved", -1, seen[0].detail)
    if seen and seen[-1].outcome == "error":
        return Outcome(seen, "error", len(seen) - 1, seen[-1].detail)
    return Outcome(seen)


class Died(Exception):
    """The worker is gone: its exit status and last words."""


class TimedOut(Exception):
    """A call passed its limit and the worker was killed."""

    def __init__(self, step: int) -> None:
        self.step = step


@dataclass
class Worker:
    """One worker process; started at first use, started again after a death."""

    implementation: Implementation
    call_limit: float = CALL_LIMIT
    environment: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _beat: mmap.mmap | None = None
    _buffer: bytes = b""
    _scratch: tempfile.TemporaryDirectory[str] | None = None
    """Files of the worker, which cannot remove them when it is killed."""

    def describe(self, *shape: Any) -> dict[str, Any]:
        """Capabilities and attributes.

        Raises:
            SubjectError: the subject cannot be opened or made.
        """
        try:
            kind, payload = self._ask("describe", shape)
        except (Died, TimedOut) as error:
            raise SubjectError(f"{self.implementation.spec}: {_words(error, self.call_limit)}") from error
        if kind != "description":
            raise SubjectError(f"{self.implementation.spec}: {payload}")
        return dict(payload)

    def growth(self, name: str, sizes: tuple[int, ...]) -> Growth:
        """Costs of the operation `name` at several sizes, without those that it refuses or that take a
        minute to set up; see subjects.growth.

        Raises:
            SubjectError: it failed or died, or hung while it was timed.
        """
        limit, late = max(self.call_limit, GROWTH_LIMIT), ""
        while True:
            try:
                kind, payload = self._ask("growth", (name, sizes), limit)
            except TimedOut as error:
                if not 0 <= error.step < len(sizes):
                    raise SubjectError(_words(error, limit)) from error
                late = f"{sizes[error.step]}: not set up within {limit:g} s"
                sizes = sizes[: error.step]  # larger ones take longer
                if len(sizes) < 2:
                    return Growth({}, late)
                continue
            except Died as error:
                raise SubjectError(str(error)) from error
            if kind != "growth":
                raise SubjectError(str(payload))
            return Growth(payload.times, "; ".join(filter(None, (payload.left_out, late))))

    def run(self, case: Case) -> Outcome:
        """Run one case; a hang, an exit or an exception is an outcome, never raised."""
        try:
            kind, payload = self._ask("run", case)
        except TimedOut as error:
            return self._until(case, error.step, "timeout", f"no answer within {self.call_limit:g} s")
        except Died as error:
            step = self._last_step()
            return self._until(case, step, "died", str(error))
        if kind != "observations":
            return Outcome((), "error", -1, str(payload))
        return ended(tuple(payload))

    def _until(self, case: Case, step: int, end: Literal["timeout", "died"], detail: str) -> Outcome:
        """What was seen before the bad operation, by running the history up to it again."""
        self.stop()
        if step <= 0:
            return Outcome((), end, step, detail)
        try:
            _, payload = self._ask("run", case.model_copy(update={"history": case.history[:step]}))
        except (TimedOut, Died):
            self.stop()
            return Outcome((), end, step, detail)
        seen = tuple(payload) if isinstance(payload, list) else ()
        return Outcome(seen, end, step, detail)

    def stop(self) -> None:
        if self._process is not None:
            self._kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                if stream:
                    with contextlib.suppress(OSError):  # what could not be sent is of no use now
                        stream.close()
            self._process, self._buffer = None, b""
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _kill(self) -> None:
        """The worker, and what it has started."""
        assert self._process is not None
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # ------------------------------------------------------------ one question

    def _ask(self, kind: str, payload: Any, limit: float | None = None) -> tuple[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, (kind, payload))  # type: ignore[arg-type]
        except OSError:
            raise self._death() from None
        return self._answer(limit or self.call_limit)

    def _start(self) -> None:
        self.stop()
        handle, path = tempfile.mkstemp(prefix="kvproof-beat-")
        os.write(handle, BEAT.pack(-1, 0.0))
        self._beat = mmap.mmap(handle, BEAT.size)
        os.close(handle)
        self._scratch = tempfile.TemporaryDirectory(prefix="kvproof-", ignore_cleanup_errors=True)
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  read back when the worker dies
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvproof.subjects.worker", self.implementation.spec, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **self.environment, SCRATCH: self._scratch.name},
            start_new_session=True,
        )
        kind, payload = self._answer(OPEN_LIMIT)
        Path(path).unlink(missing_ok=True)
        if kind != "ready":
            self.stop()
            raise SubjectError(str(payload))

    def _answer(self, limit: float) -> tuple[str, Any]:
        """The next message, watching the beat while it is awaited."""
        data = self._read(struct.calcsize("<q"), limit)
        (size,) = struct.unpack("<q", data)
        if not 0 <= size <= MOST_BYTES:
            raise self._death("it wrote into the channel of its answers")
        try:
            kind, answer = pickle.loads(self._read(size, limit))
        except (Died, TimedOut):
            raise
        except Exception:
            raise self._death("its answer cannot be read") from None
        return kind, answer

    def _read(self, size: int, limit: float) -> bytes:
        """So many bytes of the worker's answers.

        Raises:
            TimedOut: one call takes longer than `limit`, or nothing at all happens for so long.
            Died: the process is gone.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        handle, beat, since = self._process.stdout.fileno(), self._read_beat(), time.monotonic()
        with selectors.DefaultSelector() as ready:
            ready.register(handle, selectors.EVENT_READ)
            while len(self._buffer) < size:
                if ready.select(timeout=min(0.1, limit / 4)):
                    chunk = os.read(handle, 1 << 20)
                    if not chunk:
                        raise self._death()
                    self._buffer += chunk
                    since = time.monotonic()
                    continue
                if self._process.poll() is not None:  # a child of it may hold the pipe open
                    raise self._death()
                step, began = now = self._read_beat()
                if now != beat:
                    beat, since = now, time.monotonic()
                if time.monotonic() - (began or since) > limit:
                    self.stop()
                    raise TimedOut(step)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _read_beat(self) -> tuple[int, float]:
        assert self._beat is not None
        step, began = BEAT.unpack_from(self._beat, 0)
        return step, began

    def _last_step(self) -> int:
        return self._read_beat()[0] if self._beat is not None else -1

    def _death(self, why: str = "") -> Died:
        assert self._process is not None
        if why:
            self._process.kill()
        status = self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read()[-400:].decode("utf-8", "replace").strip().splitlines()[-1:]
        said = f"; its last words: {words[0]}" if words else ""
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return Died(why or f"the process ended with {how}{said}")


def _words(error: Exception, limit: float) -> str:
    return f"no answer within {limit:g} s" if isinstance(error, TimedOut) else str(error)

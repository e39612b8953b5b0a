"""A program that answers lines: started, asked, watched, and ended when it crashes, hangs or floods."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
import weakref

from kvproof.subjects.drive import Nonsense
from kvproof.subjects.parent import die_with_parent

ANSWER_LIMIT = 120.0
"""Seconds until an answer; in a worker process its parent gives up earlier, at the limit of a call."""
MOST_ANSWER = 64 << 20
"""Bytes of one answer; the batch tensor of the largest benchmark is half of that."""
MOST_WORDS = 16 << 20
"""Bytes on standard error while one answer is awaited."""
SHOWN = 120
"""Bytes of what was read that a message shows."""
LEAVE_S = 0.5
"""Seconds that a program has to leave when its input ends."""


class ProgramFault(Nonsense):
    """The program gave no answer, or one that breaks the protocol; it has been ended."""


def words_of(command: str) -> list[str]:
    """The command's words; no shell runs it.

    Raises:
        ValueError: it is empty, or a quote is not closed.
    """
    words = shlex.split(command, posix=os.name != "nt")
    if not words:
        raise ValueError("a command is needed")
    return words


class Channel:
    """One running program.

    own_group: it and what it starts are a process group that ends with it; else they stay in ours,
    which is that of a worker process and ends with that.
    """

    def __init__(self, command: str, own_group: bool, limit: float = ANSWER_LIMIT) -> None:
        self.command, self.limit, self._own_group = command, limit, own_group
        self._read, self._line, self._words, self._said = bytearray(), -1, b"", 0
        try:
            self._process = subprocess.Popen(
                words_of(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=own_group,
                preexec_fn=None if own_group else die_with_parent,
            )
        except OSError as error:
            raise ProgramFault(f"the program cannot be started: {error}") from None
        process = self._process
        assert process.stdin
        assert process.stdout
        assert process.stderr
        self._in, self._out, self._err = process.stdin, process.stdout, process.stderr
        for stream in (self._in, self._out, self._err):
            os.set_blocking(stream.fileno(), False)
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._out, selectors.EVENT_READ)
        self._ready.register(self._err, selectors.EVENT_READ)
        self.end = weakref.finalize(self, _end, process, own_group, self._ready)
        """Ends it; also when the channel is forgotten, and at exit."""

    @property
    def alive(self) -> bool:
        return self.end.alive and self._process.poll() is None

    def ask(self, request: bytes) -> bytes:
        """The line that answers this one.

        Raises:
            ProgramFault: there is none: it ended, is silent for `limit` seconds, or says something else.
        """
        asked = request if len(request) <= SHOWN else request[:SHOWN] + b"..."
        self._asked = asked.decode("utf-8", "replace")
        if not self.end.alive:
            raise ProgramFault("the program has been ended")
        self._take(0)
        if self._read:
            raise self._fault("wrote a line that nothing had asked for")
        self._said, self._line = 0, -1
        until = time.monotonic() + self.limit
        left = self._send(memoryview(request + b"\n"))
        if left:
            self._ready.register(self._in, selectors.EVENT_WRITE)
        while self._line < 0:
            wait = until - time.monotonic()
            if wait <= 0:
                raise self._fault(f"gave no answer within {self.limit:g} s")
            if self._take(wait) and left:
                left = self._send(left)
                if not left:
                    self._ready.unregister(self._in)
        if left:
            raise self._fault("answered before it had read the request")
        if self._line + 1 < len(self._read):
            raise self._fault("wrote more than the one line that answers")
        answer = bytes(self._read[:-1])
        self._read.clear()
        return answer

    def refuse(self, why: str, answer: bytes) -> ProgramFault:
        """The error for an answer that was read and is none; ends the program, whose state is unknown now."""
        self._read[:] = answer
        return self._fault(why)

    def _send(self, data: memoryview) -> memoryview:
        """What could not be written yet."""
        try:
            while data and (written := self._in.write(data)):  # None: the pipe is full
                data = data[written:]
        except OSError:
            raise self._ended() from None
        return data

    def _take(self, wait: float) -> bool:
        """Read what is there, after at most `wait` seconds; True if more can be written."""
        writable = False
        for key, _ in self._ready.select(wait):
            if key.fileobj is self._in:
                writable = True
                continue
            chunk = os.read(key.fd, 1 << 20)
            if key.fileobj is self._out:
                if not chunk:
                    raise self._ended()
                if self._line < 0 and (at := chunk.find(b"\n")) >= 0:
                    self._line = len(self._read) + at
                self._read += chunk
                if self._line < 0 and len(self._read) > MOST_ANSWER:
                    raise self._fault(f"wrote {len(self._read):,} bytes without an end of line")
            elif not chunk:
                self._ready.unregister(self._err)
            else:
                self._words, self._said = (self._words + chunk)[-4096:], self._said + len(chunk)
                if self._said > MOST_WORDS:
                    raise self._fault(f"wrote {self._said:,} bytes to standard error and no answer")
        return writable

    def _ended(self) -> ProgramFault:
        try:
            status = self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            return self._fault("closed its standard output")
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        return self._fault(f"ended with {how}")

    def _fault(self, what: str) -> ProgramFault:
        """The error with what was read; the program is ended."""
        if self.end.alive:
            self._last_words()
        read, words = bytes(self._read), self._words.decode("utf-8", "replace").strip().splitlines()[-1:]
        self._read.clear()
        self.end()
        said = f"the program {what}; asked was {self._asked}"
        if read:
            more = f"... {len(read):,} bytes" if len(read) > SHOWN else ""
            said += f"; read was {read[:SHOWN].decode('utf-8', 'backslashreplace')!r}{more}"
        if words:
            said += f"; its last words: {words[0][:SHOWN]!r}"
        return ProgramFault(said)

    def _last_words(self) -> None:
        """What it had still written to standard error."""
        with contextlib.suppress(OSError):
            self._words = (self._words + (os.read(self._err.fileno(), 1 << 16) or b""))[-4096:]


def _end(process: subprocess.Popen[bytes], own_group: bool, ready: selectors.BaseSelector) -> None:
    """Close its input, give it a moment to leave, and end it and its group."""
    ready.close()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(LEAVE_S)
    with contextlib.suppress(OSError):
        if own_group and hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()

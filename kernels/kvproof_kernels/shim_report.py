"""What a stopped shim says: the fault, who made it, and the lines of the kernel that led there."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Literal, cast

Kind = Literal["memory", "race", "barrier"]

MOST_LINES = 60


class ShimStopped(RuntimeError):
    """The shim or a sanitizer has stopped a kernel.

    kind: "memory", an access that is not allowed; "race", two that nothing orders, or a copy that nobody
        waits for; "barrier", threads that cannot meet.
    report: the fault, the CUDA block and thread, and the lines of the kernel, innermost first.
    """

    def __init__(self, kind: Kind, report: str) -> None:
        super().__init__(report)
        self.kind: Kind = kind
        self.report = report


def stopped(status: int, said: str, library: str) -> Exception:
    """The exception for a run that ended badly.

    Args:
        status: the exit status; negative for a signal.
        said: all of stderr.
        library: the kernel's file, in which instructions are looked up.

    Returns:
        ShimStopped, or RuntimeError if it was no fault of the kernel.
    """
    if own := re.search(r"^simt: (memory|race|barrier): (.*)$", said, re.M):
        kind, fault = cast("Kind", own[1]), own[2]
    elif "ThreadSanitizer: data race" in said:
        kind, fault = "race", "data race"
    elif found := re.search(r"(?:Address|Thread)Sanitizer: ([\w-]+)|runtime error: (.*)", said):
        kind, fault = "memory", found[1] or found[2]
    elif status < 0:
        kind, fault = "memory", f"the kernel ended by {signal.Signals(-status).name}"
    else:
        return RuntimeError(f"the shim could not run {library}: {said.strip() or f'exit status {status}'}")
    lines = [*_lines(said), *_looked_up(library, re.findall(r"^simt: pc (0x[0-9a-f]+) of (.+)$", said, re.M))]
    return ShimStopped(kind, "\n".join([f"{kind}: {fault}", *dict.fromkeys(lines)][:MOST_LINES]))


def _lines(said: str) -> Iterator[str]:
    """The shim's own lines, a sanitizer's accesses, and the frames that are in the kernel's source."""
    threads = dict(re.findall(r"Thread (T\d+) '(CUDA thread \d+)'", said))
    own: list[str] = []
    for line in said.splitlines():
        if re.match(r"simt: (?!pc|memory|race|barrier)", line):
            own.append(line.removeprefix("simt: "))
        elif access := re.match(r" *((?:Previous )?\w+ of size \d+)(?:.* by thread (T\d+))?", line):
            by = threads.get(access[2])
            yield f"{access[1]} by {by}" if by else access[1]
        elif frame := re.match(r" *#\d+ (?:0x\w+ in )?(.*) (?:\S*/)?([\w.]+\.cuh:\d+)", line):
            yield f"  {_short(frame[1])} {frame[2]}"
    yield from own


def _looked_up(library: str, places: Sequence[tuple[str, str]]) -> list[str]:
    """The lines that instructions of the kernel's file come from, by addr2line of binutils."""
    own = [place for place, file in places if file == library]
    if not own or not shutil.which("addr2line"):
        return []
    command = ["addr2line", "-e", library, "-f", "-i", "-s", "-C", "-p", *own]
    done = subprocess.run(command, capture_output=True, text=True)
    frames = re.findall(r"^(?: \(inlined by\) )?(.*) at ([\w.]+\.cuh:\d+)", done.stdout, re.M)
    return [f"  {_short(name)} {place}" for name, place in frames]


def _short(name: str) -> str:
    """A function's name without namespace, template arguments and parameters."""
    before = ""
    while before != name:
        before, name = name, re.sub(r"<[^<>]*>", "", name)
    return name.split("(")[0].split("::")[-1].split(" ")[-1]

"""What cuobjdump says of a cubin: resources, instructions, and the loop that streams the cache."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_RESOURCE = re.compile(r"\b(REG|STACK|LOCAL|SHARED):(\d+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+([^;]+?)\s*;")
_GUARD = re.compile(r"^@!?U?P\w+\s+")
_TARGET = re.compile(r"\b(0x[0-9a-f]+)$")
_CONDITION = re.compile(r"!?U?P\w+")

COPY, MATRIX, FRAGMENT, MULTIPLY = "LDGSTS", "HMMA", "LDSM", "FFMA"
LEAST_MULTIPLIES = 16  # an FFMA or two do not make a loop the one that streams


class NoTool(RuntimeError):
    """cuobjdump is not installed."""


@dataclass(frozen=True)
class Loop:
    """The instructions of one innermost loop that both copies and multiplies."""

    start: int
    end: int
    opcodes: Counter[str]

    @property
    def instructions(self) -> int:
        return sum(self.opcodes.values())

    @property
    def copies(self) -> int:
        return count(self.opcodes, COPY)


@dataclass(frozen=True)
class Usage:
    """Registers a thread, bytes of stack and local memory, all opcodes, and the loops that stream KV."""

    registers: int
    stack: int
    local: int
    opcodes: Counter[str]
    loops: tuple[Loop, ...]


def count(opcodes: Counter[str], *names: str) -> int:
    """How many instructions have one of these names, whatever their suffixes."""
    return sum(n for opcode, n in opcodes.items() if opcode.split(".")[0] in names)


def find_cuobjdump() -> str:
    """The path of cuobjdump: from its pip package, a CUDA toolkit or the path.

    Raises:
        NoTool: it is nowhere.
    """
    found = None
    try:
        from cuda.pathfinder import find_nvidia_binary_utility

        found = find_nvidia_binary_utility("cuobjdump")
    except ImportError:
        pass
    found = found or shutil.which("cuobjdump")
    if not found:
        raise NoTool("cuobjdump is not installed; `pip install kvproof[compile]` brings it")
    return found


def read(cubin: Path) -> Usage:
    """The usage of the one kernel in a cubin."""
    tool = find_cuobjdump()

    def said(option: str) -> str:
        done = subprocess.run([tool, option, str(cubin)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{tool} {option} {cubin}: {done.stderr.strip()}")
        return done.stdout

    return parse(said("-res-usage"), said("-sass"))


def parse(resources: str, sass: str) -> Usage:
    """A usage from the texts of `cuobjdump -res-usage` and `cuobjdump -sass`."""
    numbers = {name: int(number) for name, number in _RESOURCE.findall(resources)}
    code = [(int(at, 16), text) for at, text in _INSTRUCTION.findall(sass)]
    if "REG" not in numbers or not code:
        raise ValueError(
            "this is not what cuobjdump says of a cubin with one kernel: no REG, or no instruction"
        )
    return Usage(
        registers=numbers["REG"],
        stack=numbers["STACK"],
        local=numbers["LOCAL"],
        opcodes=Counter(_opcode(text) for _, text in code),
        loops=_streaming_loops(code),
    )


def _opcode(text: str) -> str:
    return _GUARD.sub("", text).split()[0]


@dataclass(frozen=True)
class _Jump:
    target: int  # index of an instruction
    always: bool


def _jump(text: str, index: dict[int, int]) -> _Jump | None:
    """Where an instruction may jump to. BRA.DIV does not count: only warps that diverged take it."""
    opcode = _opcode(text)
    target = _TARGET.search(text)
    if not target or opcode.split(".")[0] not in ("BRA", "CALL") or ".DIV" in opcode:
        return None
    guarded = bool(_GUARD.match(text)) or bool(_CONDITION.search(text.split(opcode, 1)[1]))
    at = index.get(int(target.group(1), 16))
    return None if at is None else _Jump(at, always=not guarded and opcode.startswith("BRA"))


def _reached(code: list[tuple[int, str]], jumps: list[_Jump | None]) -> list[bool]:
    """Which instructions a warp that never diverges can come to. The others stand out of line at the end."""
    reached = [False] * len(code)
    todo = [0]
    while todo:
        at = todo.pop()
        while at < len(code) and not reached[at]:
            reached[at] = True
            jump, text = jumps[at], code[at][1]
            if jump:
                todo.append(jump.target)
            if (jump and jump.always) or text.split()[0].split(".")[0] in ("EXIT", "RET"):
                break
            at += 1
    return reached


def _streaming_loops(code: list[tuple[int, str]]) -> tuple[Loop, ...]:
    """Every innermost range closed by a backward jump that has copies and products in it."""
    index = {at: i for i, (at, _) in enumerate(code)}
    jumps = [_jump(text, index) for _, text in code]
    reached = _reached(code, jumps)
    found: list[Loop] = []
    for end, jump in enumerate(jumps):
        if not jump or not reached[end] or jump.target >= end:
            continue
        inside = range(jump.target, end + 1)
        opcodes = Counter(_opcode(code[i][1]) for i in inside if reached[i])
        multiplies = count(opcodes, MATRIX) or count(opcodes, MULTIPLY) >= LEAST_MULTIPLIES
        if count(opcodes, COPY) and multiplies:
            found.append(Loop(jump.target, end, opcodes))
    kept: list[Loop] = []
    for loop in sorted(found, key=lambda loop: loop.end - loop.start):
        if all(loop.end < other.start or other.end < loop.start for other in kept):
            kept.append(loop)
    return tuple(kept)

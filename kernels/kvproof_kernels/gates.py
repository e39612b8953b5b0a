"""Static gates: what a compiled kernel must show before any GPU runs it.

Per kernel and architecture: no stack, spill or local memory; every copy of KV an asynchronous one of 16
bytes; matrix instructions and their loads where they should be; enough bytes in flight to cover the
memory's latency (Little's law); and enough issue slots to keep up with the memory. The last two are
arithmetic on counts, not timings: a kernel that passes can still be slow, one that fails cannot be fast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvproof_kernels import sass

LATENCY = 1e-6  # seconds that a loaded memory takes to answer
IN_FLIGHT_MARGIN = 1.5
ISSUE_LEAST, ISSUE_WARNING = 1.0, 1.5
REGISTER_SLACK = 8  # two releases of the compiler differ by this much
SCHEDULERS = 4  # an SM issues one instruction a scheduler and cycle
RESERVED_SHARED = 1024  # bytes that every resident block takes besides its own
REGISTER_UNIT = 8  # registers a thread are handed out by this many
COPY_BYTES = 32 * 16  # of one LDGSTS.128, all lanes
_PAGE = """\
# Static gates of the CUDA kernels

Made by `nox -s kernels -- --write results/static-gates.md`, without a GPU, from what NVRTC {nvrtc} compiles
and cuobjdump prints. No kernel here has a stack, a spill or local memory; every copy of KV is an
asynchronous one of 16 bytes; tensor kernels have HMMA and LDSM.

- In flight: what an SM keeps asked for, and that over what {latency} us of latency needs (at least {margin}).
- Issue: the bytes a second that one instruction a scheduler and cycle allows, in percent of the memory's
  rate (at least {least}, where the kernel streams): a model, not a timing.
- Chips: {chips}.

`nox -s kernels` fails where a gate does, or where a register count is off this table by more than {slack}.

| arch | kernel | registers | shared KiB | blocks/SM | in flight KiB | over need | instr/B | issue, % | note |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
{rows}

| kernel | why it is in the list |
| --- | --- |
{reasons}
"""
_ROW = re.compile(r"^\| (sm_\d+) \| `(.+?)` \| (\d+) \|", re.MULTILINE)


@dataclass(frozen=True)
class Chip:
    """One GPU of an architecture: datasheet, and the table of limits in the CUDA programming guide."""

    name: str
    sms: int
    clock: float  # Hz, under load
    memory: float  # bytes a second
    shared_per_sm: int
    shared_per_block: int
    warps: int  # resident on an SM
    blocks: int
    registers: int = 65536

    def resident(self, registers: int, threads: int, shared: int) -> int:
        """How many blocks of a kernel one SM holds at a time; 0 where not even one fits."""
        if shared > self.shared_per_block:
            return 0
        a_thread = -(-registers // REGISTER_UNIT) * REGISTER_UNIT
        return min(
            self.registers // (a_thread * threads),
            self.shared_per_sm // (shared + RESERVED_SHARED),
            self.warps * 32 // threads,
            self.blocks,
        )

    @property
    def needed_in_flight(self) -> float:
        """Bytes an SM must have asked for at any moment to use all of the memory's rate."""
        return self.memory / self.sms * LATENCY

    def issue_rate(self, instructions_per_byte: float) -> float:
        """Bytes a second that the issue slots allow, over those of the memory."""
        return SCHEDULERS * self.clock * self.sms / self.memory / instructions_per_byte


CHIPS = {
    "sm_80": Chip("A100 80GB", 108, 1.41e9, 2.04e12, 164 << 10, 163 << 10, 64, 32),
    "sm_90": Chip("H200", 132, 1.83e9, 4.8e12, 228 << 10, 227 << 10, 64, 32),
    "sm_100": Chip("B200", 148, 1.85e9, 8.0e12, 228 << 10, 227 << 10, 64, 32),
    "sm_120": Chip("RTX 5090", 170, 2.41e9, 1.79e12, 100 << 10, 99 << 10, 48, 24),
}


@dataclass(frozen=True)
class Subject:
    """One instantiation of a kernel and what is asked of it.

    shared: dynamic shared memory of a block, bytes. copies: it streams KV by asynchronous copies. tensor: it
    multiplies with matrix instructions. in_flight: bytes a block keeps asked for, 0 if that is not asked.
    rated: its issue rate must keep up with the memory. why: what the instantiation serves.
    """

    name: str
    header: str
    expression: str
    threads: int
    shared: int
    copies: bool
    tensor: bool
    in_flight: int
    rated: bool
    why: str


@dataclass(frozen=True)
class Verdict:
    """A subject on one architecture: figures, problems (each fails a gate), and warnings."""

    subject: str
    arch: str
    registers: int
    shared: int
    blocks: int
    in_flight: int
    cover: float  # bytes in flight over those needed; 0: not asked
    per_byte: float  # instructions of the streaming loop per byte; 0: no such loop
    issue: float  # what they allow, over the memory's rate; 0: no such loop
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def judge(subject: Subject, arch: str, usage: sass.Usage) -> Verdict:
    """Hold one compiled kernel against the gates, on the chip that stands for its architecture."""
    chip = CHIPS[arch]
    blocks = chip.resident(usage.registers, subject.threads, subject.shared)
    in_flight = blocks * subject.in_flight
    cover = in_flight / chip.needed_in_flight
    # A kernel that reads its tiles many times over, such as prefill, does not stream.
    loops = usage.loops if subject.in_flight else ()
    per_byte = max((loop.instructions / (loop.copies * COPY_BYTES) for loop in loops), default=0.0)
    issue = chip.issue_rate(per_byte) if per_byte else 0.0
    spills = sass.count(usage.opcodes, "LDL", "STL")
    narrow = sum(n for o, n in usage.opcodes.items() if o.startswith(sass.COPY) and "128" not in o.split("."))
    matrices = sass.count(usage.opcodes, sass.MATRIX)
    fragments = sass.count(usage.opcodes, sass.FRAGMENT)
    gates = {
        f"{usage.stack} bytes of stack, {usage.local} of local memory, {spills} accesses to it": bool(
            usage.stack or usage.local or spills
        ),
        f"{subject.shared} bytes of shared memory, a block may have {chip.shared_per_block}": (
            subject.shared > chip.shared_per_block
        ),
        "no block fits an SM": not blocks,
        "no asynchronous copy": subject.copies and not sass.count(usage.opcodes, sass.COPY),
        f"{narrow} copies narrower than 16 bytes": narrow > 0,
        "no matrix instruction, or no load for one": subject.tensor and not (matrices and fragments),
        f"{cover:.2f} of the bytes in flight that the latency needs, {IN_FLIGHT_MARGIN} are asked": (
            bool(subject.in_flight) and cover < IN_FLIGHT_MARGIN
        ),
        "no loop that streams the cache was found": subject.rated and not usage.loops,
        f"the issue slots allow {issue:.0%} of the memory's rate": (
            subject.rated and 0 < issue < ISSUE_LEAST
        ),
    }
    low = f"the issue slots allow {issue:.0%} of the memory's rate, under {ISSUE_WARNING:.0%}"
    return Verdict(
        subject=subject.name,
        arch=arch,
        registers=usage.registers,
        shared=subject.shared,
        blocks=blocks,
        in_flight=in_flight,
        cover=cover,
        per_byte=per_byte,
        issue=issue,
        problems=tuple(what for what, bad in gates.items() if bad),
        warnings=(low,) if subject.rated and ISSUE_LEAST <= issue < ISSUE_WARNING else (),
    )


def drift(verdicts: Sequence[Verdict], committed: str) -> list[str]:
    """Register counts that differ from the committed table by more than the slack, and rows it lacks."""
    known = {(name, arch): int(registers) for arch, name, registers in _ROW.findall(committed)}
    found = []
    for one in verdicts:
        before = known.get((one.subject, one.arch))
        if before is None:
            found.append(f"{one.arch} {one.subject}: not in the committed table")
        elif abs(one.registers - before) > REGISTER_SLACK:
            found.append(f"{one.arch} {one.subject}: {one.registers} registers, committed {before}")
    return found


def line(one: Verdict) -> str:
    """One verdict for the terminal."""
    rate = f", {one.per_byte:.3f} instr/B, issue {one.issue:.0%}" if one.issue else ""
    flight = f", {one.in_flight >> 10} KiB in flight ({one.cover:.1f}x)" if one.in_flight else ""
    said = [*(f"FAIL {what}" for what in one.problems), *(f"warning: {what}" for what in one.warnings)]
    return (
        f"{one.arch:6} {one.subject:44} {one.registers:3} registers, {one.shared / 1024:5.1f} KiB shared, "
        f"{one.blocks} blocks/SM{flight}{rate}{'; ' if said else ''}{'; '.join(said)}"
    )


def table(verdicts: Sequence[Verdict], subjects: Sequence[Subject], nvrtc: str) -> str:
    """The committed table, in Markdown."""
    rows = [
        f"| {one.arch} | `{one.subject}` | {one.registers} | {one.shared / 1024:.1f} | {one.blocks} "
        f"| {_or_dash(one.in_flight >> 10)} | {_or_dash(round(one.cover, 1))} "
        f"| {_or_dash(round(one.per_byte, 3))} | {_or_dash(round(100 * one.issue))} "
        f"| {'; '.join(one.problems) or ('under 150 %' if one.warnings else '')} |"
        for one in verdicts
    ]
    return _PAGE.format(
        nvrtc=nvrtc,
        latency=f"{LATENCY * 1e6:.0f}",
        margin=IN_FLIGHT_MARGIN,
        least=f"{100 * ISSUE_LEAST:.0f}",
        slack=REGISTER_SLACK,
        chips=", ".join(f"{chip.name} for {arch}" for arch, chip in CHIPS.items()),
        rows="\n".join(rows),
        reasons="\n".join(f"| `{subject.name}` | {subject.why} |" for subject in subjects),
    )


def _or_dash(number: float) -> str:
    return f"{number}" if number else "-"

"""Everything that a GPU machine can tell, in one run of under eight minutes: `python -m kvproof.gpu`.

Each step is a process of its own with a limit of time; what it prints is passed on as it comes. A step
that fails does not stop those behind it; one for which no time is left is named.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproof.subjects import find

TOTAL_S = 470
"""For all steps together."""
LEAST_S = 15
"""A step is not begun with less."""
CASE = "--small-case"
"""Argument of this module: one small decode, checked, for a sanitizer to watch."""
TECHNIQUES = ("staged", "coalesced", "prefetch", "bypass")


@dataclass(frozen=True)
class Step:
    """A part of the run. needs: a program without which it is left out."""

    name: str
    command: tuple[str, ...]
    limit_s: int
    needs: str = ""


def steps(results: Path) -> list[Step]:
    """The run, in the order of what one would want to know first."""
    module = (sys.executable, "-m")
    command = (*module, "kvproof.cli")
    bench = (*command, "bench", "--profile", "kernel", "--device", "cuda", "--results", str(results))
    without = [f"cuda_techniques:make_without_{t}" for t in TECHNIQUES]
    lanes = [a for name in ("cuda", *without, "cuda_techniques") for a in ("--impl", name)]
    case = (*module, "kvproof.gpu", CASE)
    sanitizer = ("compute-sanitizer", "--error-exitcode", "9", "--tool")
    judged = ("conformance", "--profile", "kernel", "--impl", "cuda", "--results", str(results))
    return [
        Step("compile", (*module, "kvproof_kernels", "compile", "--arch", "native"), 90),
        Step("conformance on the device", (*command, *judged), 120),
        Step("attention beside the baselines", bench, 160),
        Step("the four techniques, on and off", (*bench, "--cell", "attention_topology", *lanes), 60),
        Step("the chapter's claims", (*command, "claims"), 60),
        Step("memcheck", (*sanitizer, "memcheck", *case), 60, "compute-sanitizer"),
        Step("racecheck", (*sanitizer, "racecheck", *case), 60, "compute-sanitizer"),
    ]


def run(todo: Sequence[Step], total_s: float = TOTAL_S) -> int:
    """Run the steps one after another, and say last what came of each; 0 if none failed."""
    started, ended = time.monotonic(), list[tuple[str, str, float]]()
    for step in todo:
        begun = time.monotonic()
        limit = min(step.limit_s, total_s - (begun - started))
        if step.needs and shutil.which(step.needs) is None:
            ended.append((step.name, f"not run: no {step.needs}", 0))
            continue
        if limit < LEAST_S:
            ended.append((step.name, "not run: no time left", 0))
            continue
        print(f"== {step.name}, {begun - started:.0f} s into the run, at most {limit:.0f} s", flush=True)
        with subprocess.Popen(step.command, start_new_session=True) as process:
            try:
                status = process.wait(timeout=limit)
                how = f"FAILED: exit status {status}" if status else "passed"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its children too
                how = f"FAILED: not done in {limit:.0f} s"
        ended.append((step.name, how, time.monotonic() - begun))
    print(f"== {time.monotonic() - started:.0f} s in all", flush=True)
    width = max((len(name) for name, _, _ in ended), default=0)
    for name, how, seconds in ended:
        print(f"{name:{width}}  {seconds:4.0f} s  {how}", flush=True)
    return 1 if any(how.startswith("FAILED") for _, how, _ in ended) else 0


def to_commit(results: Path, before: set[Path], device: str) -> str:
    """What the run has written, and where it belongs in the repository."""
    new = sorted(str(p) for p in results.glob("*/*.jsonl") if p not in before)
    place = f"results/baselines/{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}/"
    return (
        f"to commit under {place}, each file by a name of its own: {', '.join(new) or 'nothing was written'}"
    )


def missing() -> dict[str, str]:
    """What the kernels lack here: name -> what to do about it."""
    return find("cuda").missing()


def small_case(name: str = "cuda", device: str = "cuda") -> int:
    """One decode of three short ragged sequences, held against float64; 0 if it is right."""
    import torch

    from kvproof.bench import paged

    shape = paged.Shape(tokens=70, batch=3, query_heads=8, kv_heads=2, head_dim=64, dtype="bf16")
    keys, values = paged.fill(shape, 1, device, 0).cache("NHD", 16)
    (table,) = paged.tables("shuffled", shape, 1, 16, device, 0)
    lengths, scale = (70, 1, 33), shape.head_dim**-0.5
    q = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(1)).to(device, torch.bfloat16)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    out, _ = find(name).factory()().decode(q, keys, values, table, seq_lens, scale)
    wanted = []
    for b, n in enumerate(lengths):
        for h in range(8):
            k, v = (paged.positions(c, "NHD", table[b], n, h // 4) for c in (keys, values))
            wanted.append(paged.exact(k, v, q[b, h], scale))
    error = paged.distance(out.flatten(0, 1), wanted)
    print(f"decode of {lengths} tokens: relative error {error:.2g}")
    return 0 if error <= paged.tolerance(shape) else 1


def main(arguments: Sequence[str]) -> int:
    """0 if nothing failed, or nothing can run here."""
    absent = missing()
    if absent:
        names = ", ".join(s.name for s in steps(Path()))
        print(f"not here: {'; '.join(f'{what}: {how}' for what, how in absent.items())}. Not run: {names}")
        return 0
    if CASE in arguments:
        return small_case()
    import torch

    results = Path("results") / "runs"
    before = set(results.glob("*/*.jsonl"))
    status = run(steps(results))
    print(to_commit(results, before, torch.cuda.get_device_name()))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Claims about time: measured on the CPU kernel, or on a GPU where there is one."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from kvproof.bench.run import has_gpu
from kvproof.claims.claim import Claim, Verdict, judged
from kvproof.records import Sample
from kvproof.subjects import SubjectError, find

STEP = {"tokens": 4096, "dtype": "fp32", "batch": 8, "heads": "32/8", "head_dim": 128}
BUDGET_S = 0.5
NEAR = 1.15
"""A block size costs nothing worth a word below this ratio."""
TECHNIQUES = {
    "staged": "the table in shared memory makes paged attention near contiguous",
    "coalesced": "table entries loaded together by a warp save time",
    "prefetch": "__ldg() of the next entry hides its latency",
    "bypass": "tables of one or two entries are worth a path of their own",
}
"""Chapter 3.2.7, each against the same kernel without it."""


def measured() -> Iterator[Claim]:
    """All of them; what cannot run here says why."""
    yield from _paging()
    yield from _latency()
    yield from _techniques()


def _paging() -> Iterator[Claim]:
    near = "3.2.7", "paged attention is near contiguous KV", "near"
    gather = "3.2.1", "paged KV is transparent to what computes", "transparent"
    samples, why = _run(
        ["cpu_kernel", "torch_sdpa:make_gather"], STEP, (("identity", 256), ("shuffled", 16)), "cpu"
    )
    paged = [s for s in samples if s.implementation == "cpu_kernel" and s.rounds]
    gathered = [s for s in samples if "gather" in s.implementation and s.rounds]
    if len(paged) == 2:
        whole, small = paged
        ratio = small.median / whole.median
        text = f"{ratio:.2f}x: CPU kernel, shuffled blocks of 16 against blocks of 256 in order, {_step()}"
        yield judged(*near, text, ratio <= NEAR)
    else:
        yield Claim(*near, why or _note(samples, "cpu_kernel"), Verdict.NOT_RUN)
    if gathered and "ratio" in gathered[-1].counters:
        c = gathered[-1].counters
        interval = f"{c['ratio_low']:.1f}-{c['ratio_high']:.1f}"
        text = (
            f"gather, then torch's SDPA: {c['ratio']:.1f}x ({interval}) of SDPA on contiguous KV, {_step()}"
        )
        yield judged(*gather, text, c["ratio"] <= NEAR)
    else:
        yield Claim(*gather, why or _note(samples, "gather"), Verdict.NOT_RUN)


def _step() -> str:
    return f"{STEP['batch']} x {STEP['tokens']:,} tokens, {STEP['heads']} heads, {STEP['dtype']}"


def _note(samples: Sequence[Sample], name: str) -> str:
    notes = [s.note for s in samples if name in s.implementation and not s.rounds]
    return notes[0] if notes else "not measured"


def _run(
    names: Sequence[str], step: dict[str, Any], variants: Sequence[tuple[str, int]], device: str
) -> tuple[list[Sample], str]:
    """Samples of one group of points, or why there are none."""
    if find_spec("torch") is None:
        return [], "no torch here"
    from kvproof.bench.attention import AttentionJob, Group
    from kvproof.bench.kernels import open_kernel
    from kvproof.bench.matrix import Point

    opened = []
    for name in names:
        try:
            implementation = find(name)
            missing = implementation.missing()
            if missing:
                return [], f"{name}: no {', '.join(missing)}"
            opened.append(open_kernel(implementation))
        except SubjectError as error:
            return [], str(error)
    points = [Point("claims", {**step, "block_size": size, "topology": name}) for name, size in variants]
    samples: list[Sample] = []
    job = AttentionJob(opened, [Group("claims", tuple(points))], BUDGET_S, samples.append, device=device)
    job.measure(job.points[0], _timed)
    return samples, ""


def _timed(
    target: Callable[..., Any], setup: Callable[[], Any], teardown: Callable[..., Any], rounds: int
) -> list[float]:
    """Rounds of `target`, each with its set-up and check outside the time."""
    seconds = []
    for _ in range(rounds):
        arguments, _ = setup()
        start = perf_counter()
        target(*arguments)
        seconds.append(perf_counter() - start)
        teardown(*arguments)
    return seconds


def _latency() -> Iterator[Claim]:
    look_up = "3.2.2", "a look-up of the table costs one global read", "400-800 cycles"
    faster = "3.2.7", "shared memory answers over ten times sooner", "> 10x"
    if not has_gpu():
        text = "a chain of loads, each at the address the one before it gave, through both memories"
        yield Claim(*look_up, text, Verdict.GPU)
        yield Claim(*faster, text, Verdict.GPU)
        return
    found = importlib.import_module("kvproof_kernels.latency").measure()
    text = ", ".join(f"{name} {cycles:.0f}" for name, cycles in found.items()) + " cycles a dependent load"
    yield judged(*look_up, text, 400 <= found["global"] <= 800)
    yield judged(
        *faster, f"{found['global'] / found['shared']:.1f}x: {text}", found["global"] > 10 * found["shared"]
    )


def _techniques() -> Iterator[Claim]:
    if not has_gpu():
        for claim in TECHNIQUES.values():
            text = "the kernel with it against the kernel without it"
            yield Claim("3.2.7", claim, "faster", text, Verdict.GPU)
        return
    for name, claim in TECHNIQUES.items():
        step = {**STEP, "dtype": "bf16", "tokens": 32 if name == "bypass" else 16384}
        samples, why = _run(
            ["cuda", f"cuda_techniques:make_without_{name}"], step, (("shuffled", 16),), "cuda"
        )
        times = [s.median for s in samples if s.rounds and s.implementation.startswith("cuda")]
        if len(times) == 2:
            text = f"{times[1] / times[0]:.3f}x the time without it, {step['tokens']:,} tokens, bf16"
            yield judged("3.2.7", claim, "faster", text, times[1] > 1.02 * times[0])
        else:
            yield Claim("3.2.7", claim, "faster", why or _note(samples, "cuda"), Verdict.NOT_RUN)

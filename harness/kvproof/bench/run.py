"""`kvproof bench`: implementations side by side, a trace replayed and served, ranks, and attention."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from kvproof import progress, spec
from kvproof.bench import attention_rounds, baton, rank_cells, rounds, tables, traces
from kvproof.bench.apart import growth, measure_memory, measure_replay, measure_serving, measure_waste
from kvproof.bench.kernels import KernelSubject, is_kernel, open_kernel
from kvproof.bench.matrix import APART, ATTENTION, FILES, STEPPED, Point, load, part
from kvproof.bench.measure import Job
from kvproof.bench.plan import Plan
from kvproof.bench.rank_rounds import shared
from kvproof.bench.subject import RANKS as RANKS_FACTORY
from kvproof.bench.subject import Subject, open_subject
from kvproof.bench.timed import run_timed
from kvproof.environment import describe
from kvproof.records import Footer, Header, Sample
from kvproof.report import attention
from kvproof.report.results import ResultWriter
from kvproof.runs import new_folder
from kvproof.subjects import SubjectError, find

DEFAULT = ("reference", "plain")
"""Managers that are measured where none is named. Ratios are to the first of them where it takes part."""
KERNELS = {
    "cpu": ("cpu_kernel", "torch_sdpa:make_gather"),
    "cuda": (
        "cuda",
        "torch_sdpa:make_gather",
        "flash_attn",
        "flash_attn_3",
        "flash_attn_4",
        "flashinfer",
        "vllm_kernel",
    ),
}
"""Kernels that are measured on a device where none is named."""
ROUNDS = 5
"""Processes of each implementation where no number is told: as many as a verdict of `compare` needs."""
CAPACITY = (262_144, 1_048_576)
"""Tokens: a GPU of 141 GB holds under a million tokens of an 8B model at 128 KiB a token."""
SERVED_CAPACITY = (1_048_576,)
"""The same for a scheduler."""
CELL_S = {True: 1.0, False: 4.0}
"""Seconds for the rounds of one subject in one cell, quick or not."""
ROUND_S = {True: 0.04, False: 0.8}
"""The same in each of several processes, of which a round has three and more."""
TURN_S = {True: 0.25, False: 0.8}
"""The same where two versions are compared, kernels too: five rounds of 8 ms differ by a fifth between equal
processes."""
REPLAY_S = {True: 12.0, False: 120.0}
"""Seconds in one subject's calls in one replay, quick or not."""
SERVE_S = {True: 60.0, False: 300.0}
"""The same for a scheduler that serves the trace."""
ATTENTION_S = {True: 0.2, False: 3.0}
"""Seconds for the rounds of one kernel at one point, quick or not."""
SYNTHETIC_REQUESTS = 1000
PIPE_WIDTH = 110


def run(
    impls: list[str],
    trace: Path | None,
    capacity: list[int],
    block_size: int,
    cells: list[str] | None,
    quick: bool,
    seed: int,
    out: Path,
    quiet: bool,
    profile: str | None = None,
    device: str = "cpu",
    patience: float = 1.0,
    shard: tuple[int, int] | None = None,
    processes: int | None = None,
    turn: int | None = None,
    wrote: Callable[[Path], None] = lambda file: None,
) -> int:
    """Measure implementations and write the results to `out`/<time>-bench/.

    Args:
        impls: implementations to find; none: the reference beside the plain one, and kernels.
        trace: Mooncake or Azure file, gzip-compressed or not; None: a seeded synthetic trace.
        capacity: capacities of the replayed cache in tokens, 0 for no bound; none: 256 Ki and 1 Mi,
            for a scheduler 1 Mi.
        block_size: tokens a block.
        cells: cells of the matrix to run; None: all.
        quick: the short matrix, at most the first 1,000 requests of the trace.
        seed: of the synthetic trace.
        out: folder that holds all runs.
        quiet: no progress and no table, only the path of the report.
        profile: manager, scheduler, ranks or kernel; None: all that the implementations are for.
        device: "cpu" or "cuda", where kernels are measured.
        patience: how many times the usual time a slow implementation may take.
        shard: (i, n): every n-th workload of the matrix only, from the i-th on.
        processes: of each implementation, for all cells that are timed; None: 5, on a GPU one for kernels.
        turn: number of this process, where several are put together beside another version's.
        wrote: is told the result file, whole or broken off.

    Returns:
        0 numbers and no finding; 1 a result failed its check, or exact counts differ; 2 the
        arguments are wrong; 3 there is not one number, or the run was broken off. Void times are said to
        be void and are no error: whoever compares them is told.
    """
    console = Console(emoji=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = max(console.width, PIPE_WIDTH)
    try:
        if block_size < 1:
            raise ValueError(f"block size {block_size}: at least 1 token")
        for tokens in capacity:
            if tokens and tokens < block_size:
                raise ValueError(
                    f"capacity {tokens}: allowed are 0 and at least one block of {block_size} tokens"
                )
        if device == "cuda" and not has_gpu():
            console.print("PRECONDITION: no GPU that torch can use; nothing was measured")
            return 3
        subjects, kernels, absent = _open(impls, profile, cells, device, block_size)
        profiles = [profile] if profile else _profiles(subjects, kernels)
        points = part(load(spec.find(), cells, quick, profiles, device == "cuda"), shard)
        if traces.TRACE_BLOCK % block_size and any(p.cell in ("replay", "scheduler_replay") for p in points):
            raise ValueError(f"block size {block_size}: a replay allows divisors of {traces.TRACE_BLOCK}")
        requests = traces.read(trace) if trace else traces.synthetic(seed, SYNTHETIC_REQUESTS)
    except (ValueError, OSError, SubjectError, spec.SpecError) as e:
        console.print(str(e), markup=False, highlight=False)
        return 2
    for name, why in absent.items():
        if name in impls or name in _defaults(profile, cells, device):
            console.print(f"PRECONDITION {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    if not (subjects or kernels) or not points:
        console.print("nothing to measure: no implementation can run here, or this part has no workload")
        return 3
    trace_ids = traces.with_ids(requests)
    plan = Plan(subjects, points, trace_ids, capacity, quick, seed, kernels, device, absent, patience, shard)
    own = 1 if device == "cuda" else ROUNDS  # time on a device is short, and its clocks are watched
    if turn is not None:
        return measure(replace(plan, turn=turn, share=ROUNDS), out, console, quiet, wrote)
    plan = replace(plan, rounds=processes or ROUNDS, kernel_rounds=processes or own)
    if processes and processes > 1 and not plan.several():
        console.print("--rounds: none of these cells is measured in several processes", highlight=False)
        return 2
    return measure(plan, out, console, quiet, wrote)


def _profiles(subjects: Sequence[Subject], kernels: Sequence[KernelSubject]) -> list[str]:
    """What these implementations are measured by; ranks, if more than those of the first are there."""
    single = any(s.make or s.make_scheduler for s in subjects)
    ranks = any(s.make_ranks for s in subjects[1:] or subjects)
    there = {"manager": single, "scheduler": single, "ranks": ranks, "kernel": bool(kernels)}
    return [p for p in FILES if there[p]]


def _defaults(profile: str | None, cells: Sequence[str] | None, device: str) -> Sequence[str]:
    """Who is measured where nobody is named: those that the chosen cells are about."""
    if profile:
        return KERNELS[device] if profile == "kernel" else DEFAULT
    asked = {cell in ATTENTION for cell in cells} if cells else {True, False}
    return [name for kernel in sorted(asked) for name in (KERNELS[device] if kernel else DEFAULT)]


def has_gpu() -> bool:
    """Whether torch is here and can use a GPU."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def _open(
    impls: Sequence[str], profile: str | None, cells: Sequence[str] | None, device: str, block_size: int
) -> tuple[list[Subject], list[KernelSubject], dict[str, str]]:
    """Managers and schedulers, and kernels, of the names; and why others of them cannot run here."""
    subjects: list[Subject] = []
    kernels: list[KernelSubject] = []
    names = impls or _defaults(profile, cells, device)
    absent: dict[str, str] = {}
    index = spec.load()
    for name in names:
        implementation = find(name, RANKS_FACTORY if profile == "ranks" and name in impls else "make")
        missing = implementation.missing()
        if not missing and find_spec("torch") is None and is_kernel(implementation):
            missing = {"torch": "pip install torch"}
        if missing:
            absent[name] = _wants(missing)
            continue
        try:
            kernel = is_kernel(implementation)
            opened = open_kernel(implementation) if kernel else open_subject(implementation, block_size)
        except SubjectError as e:
            if impls:
                raise
            # Somebody else's package that is installed and broken must not end the run of all others.
            absent[name] = str(e)
            continue
        if profile and (profile == "kernel") != isinstance(opened, KernelSubject):
            raise ValueError(f"{name}: it does not belong to the profile {profile}")
        named = "kernel" if kernel else "manager"
        if wrong := index.misnamed(opened.capabilities, named):
            raise SubjectError(f"{name}: {wrong}")
        if profile == "ranks" and isinstance(opened, Subject) and not opened.make_ranks:
            continue  # one of the defaults
        known: list[Subject | KernelSubject] = [*subjects, *kernels]
        again = sum(s.spec == opened.spec for s in known)
        if again:  # twice the same one: how far apart two equal ones are measured
            opened.name += f" #{again + 1}"
        if isinstance(opened, KernelSubject):
            kernels.append(opened)
        else:
            subjects.append(opened)
    subjects.sort(key=lambda s: not s.spec.startswith(f"{DEFAULT[0]}:"))  # ratios are to the first
    if not impls and set(names) & set(KERNELS["cpu"]):  # a reader of the table looks for the others
        others = {name: find(name).missing() for name in KERNELS["cuda"] if name not in names}
        absent |= {name: _wants(missing) for name, missing in others.items() if missing}
    return subjects, kernels, absent


def _wants(missing: Mapping[str, str]) -> str:
    return "; ".join(f"no {what}: {how}" for what, how in missing.items())


def measure(
    plan: Plan,
    out: Path,
    console: Console,
    quiet: bool,
    wrote: Callable[[Path], None] = lambda file: None,
) -> int:
    """Measure opened subjects; arguments and answer as in `run`."""
    started, now = time.monotonic(), datetime.now(UTC)
    folder = new_folder(out, "bench", now)
    opened: list[Subject | KernelSubject] = [*plan.subjects, *plan.kernels]
    header = Header(
        what="bench",
        implementation=", ".join(s.name for s in opened),
        version=", ".join(s.version for s in opened),
        capabilities=tuple(sorted(opened[0].capabilities)),
        seed=plan.seed,
        started=now.isoformat(timespec="seconds"),
        command=shlex.join(["kvproof", *sys.argv[1:]]),
        environment=describe(bench=not plan.turn),
        absent=dict(plan.absent),
        shard="{}/{}".format(*plan.shard) if plan.shard else "",
    )
    samples: list[Sample] = []
    findings: list[str] = []
    series: list[dict[str, Any]] = []
    complete, void = True, ""
    with ResultWriter(folder / "bench.jsonl", header) as file:

        def emit(sample: Sample) -> None:
            samples.append(sample)
            file.write(sample)
            if plan.device == "cuda" and not quiet:  # time on a device is short: nothing waits for the end
                console.print(attention.line(sample), markup=False, highlight=False, soft_wrap=True)
            if sample.note.startswith("INVALID"):
                findings.append(
                    f"{sample.implementation}, {Point(sample.cell, sample.parameters)}: {sample.note}"
                )

        try:
            with _progress(plan.steps, quiet) as told:
                tell = baton.waiting() if plan.paired else told
                findings += _cells(plan, emit, tell)
                growth(samples, emit)
                findings += _apart(plan, emit, series, tell)
                rank_cells.measure(
                    plan.subjects, plan.points, plan.trace, emit, tell, plan.rounds, plan.crews, plan.paired
                )
                findings += _attention(plan, emit, tell)
        except KeyboardInterrupt:
            complete = False
            findings.append("broken off from the keyboard")
        void = rounds.void(samples)
        measured = sum(1 for s in samples if s.rounds)
        status = 3 if not complete else 1 if findings else 0 if measured else 3
        file.close(
            Footer(
                complete=complete,
                cases=len(samples),
                must_run=0,
                failed=len(findings),
                exit_status=status,
                seconds=round(time.monotonic() - started, 1),
                void=void,
            )
        )
    wrote(file.path)
    report = tables.write(folder, header, samples, [*findings, *([f"VOID: {void}"] if void else [])], series)
    if not quiet:
        tables.terminal(console, samples)
        if plan.absent:
            console.print(
                f"not measured, PRECONDITION: {', '.join(plan.absent)}", highlight=False, soft_wrap=True
            )
        if busy := header.environment.busy():
            said = f"{busy}: its times do not compare with those of a quiet machine"
            console.print(said, highlight=False, soft_wrap=True)
    for line in (*findings, *([f"VOID: {void}"] if void else [])):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    return status


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[object], None]]:
    """A bar on the terminal, nothing elsewhere; told each point before it is measured."""
    with progress.bar(quiet) as shown:
        row, done = shown.add_task("", total=total), iter(range(total))
        yield lambda point: shown.update(row, description=str(point), completed=next(done, total))


def _cells(plan: Plan, emit: Callable[[Sample], None], tell: Callable[[object], None]) -> list[str]:
    """The timed cells, run by pytest-benchmark; returns what failed outside the subjects."""
    if plan.rounds > 1:
        points = [*plan.timed, *shared(plan.stepped, plan.rounds)]
        shape = rounds.Shape(plan.rounds, ROUND_S[plan.quick], plan.patience)

        def theirs(sample: Sample) -> None:
            if sample.cell not in STEPPED or sample.implementation in plan.ranked:
                emit(sample)

        return rounds.measure(plan.subjects, points, shape, theirs, tell) if points else []
    if not plan.timed:
        return []
    seconds = (TURN_S if plan.paired else CELL_S)[plan.quick]
    return run_timed(Job(plan.subjects, plan.timed, seconds, emit, tell, patience=plan.patience))


def _attention(plan: Plan, emit: Callable[[Sample], None], tell: Callable[[object], None]) -> list[str]:
    """The cells of kernels, run in the same way; returns what failed outside the kernels."""
    points, seconds = plan.of_kernels, ATTENTION_S[plan.quick]
    if not points:
        return []
    if plan.kernel_rounds > 1:
        shape = attention_rounds.Shape(plan.kernel_rounds, seconds, plan.device, plan.seed, plan.patience)
        return attention_rounds.measure(plan.kernels, points, shape, emit, tell)
    from kvproof.bench.attention import AttentionJob, Group, groups

    def started(group: Group) -> None:
        for point in group.points:
            tell(point)

    job = AttentionJob(plan.kernels, groups(points), seconds, emit, started, plan.device, plan.seed)
    job.patience, job.turn, job.processes = plan.patience, plan.turn, plan.share
    job.own_s = TURN_S[plan.quick] if plan.paired else None
    return run_timed(job)


def _apart(
    plan: Plan,
    emit: Callable[[Sample], None],
    series: list[dict[str, Any]],
    tell: Callable[[object], None],
) -> list[str]:
    """Memory, replay, waste and serving, which adds to `series`; returns differences from exact counts."""
    differences = []
    managers = [s for s in plan.subjects if s.make is not None]
    for point in plan.points:
        if point.cell not in APART:
            continue
        tell(point)
        if point.cell == "scheduler_replay":
            capacity, seconds = plan.capacity or SERVED_CAPACITY, plan.patience * SERVE_S[plan.quick]
            series += measure_serving(plan.subjects, point, plan.trace, capacity, seconds, emit)
        elif not managers:
            continue
        elif point.cell == "memory":
            measure_memory(managers, point, emit)
        elif point.cell == "waste":
            measure_waste(managers, point, plan.trace, emit)
        else:
            capacity, seconds = plan.capacity or CAPACITY, plan.patience * REPLAY_S[plan.quick]
            differences += measure_replay(managers, point, plan.trace, capacity, seconds, emit)
    return differences

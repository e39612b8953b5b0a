"""`kvproof conformance`: judges one implementation after another and writes their result files."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvproof import ledger, progress, spec
from kvproof.conformance.citing import DRAWN, case_names
from kvproof.conformance.look import FACTORIES, OF_ONE_RANK, first_look
from kvproof.conformance.plugin import Plugin
from kvproof.conformance.session import Session, Settings, file_name
from kvproof.conformance.shortest import shortest
from kvproof.environment import describe
from kvproof.records import Footer, Header, Result, Verdict
from kvproof.report.results import ResultWriter, tally
from kvproof.subjects import Implementation, SubjectError, find
from kvproof.subjects.host import Worker

TESTS = Path(__file__).parent
STOPPED = "stopped by the user: the result file is incomplete"
OWN_KERNELS = ("cpu_kernel", "torch_gather", "torch_sdpa", "cuda_shim", "cuda_shim:make_asan")


def default_subjects(profile: str, deep: bool) -> tuple[str, ...]:
    """Who is judged when nobody is named."""
    if profile == "ranks":
        return ("reference", "reference:make_ranks_own", f"reference:{OF_ONE_RANK}", "plain")
    if profile != "kernel":
        return ("reference", "plain")
    return (*OWN_KERNELS, "cuda_shim:make_tsan") if deep else OWN_KERNELS


@dataclass(frozen=True)
class Outcome:
    """What came of one implementation."""

    implementation: Implementation
    exit_status: int
    path: Path | None
    trouble: str = ""
    """Why there is no file, or what broke in the suite."""
    interrupted: bool = False
    """The user stopped the run."""
    ran: bool = True
    """False where what it needs is not here."""


def judge_all(impls: Sequence[str], settings: Settings, quiet: bool = False) -> list[Outcome]:
    """Judge each; a result file each.

    Raises:
        SubjectError: one of them names nothing.
        LedgerError: its known.toml cannot be used.
    """
    factory = FACTORIES[settings.profile]
    found = [find(impl, factory) for impl in impls]  # all of them before any is judged
    judged = []
    for implementation in found:
        judged.append(judge_one(implementation, settings, quiet))
        if judged[-1].interrupted:
            break
    return judged


def judge_one(implementation: Implementation, settings: Settings, quiet: bool = False) -> Outcome:
    index = spec.load()
    missing = implementation.missing()
    if settings.profile == "kernel" and find_spec("torch") is None:
        missing.setdefault("torch", "pip install torch")
    if missing:
        return _not_here(implementation, settings, index, missing)
    with Worker(implementation, settings.call_limit) as worker:
        try:
            description = first_look(worker, settings.profile)
        except SubjectError as error:
            return Outcome(implementation, 2, None, " ".join(str(error).split()))
        known = ledger.load(ledger_path(implementation), index.requirements, case_names(), DRAWN)
        session = Session(worker, index, settings, description, known)
        shown = tuple(sorted(g for g in session.gates if ":" not in g))
        header = _header(implementation, settings, index, shown)
        unknown = index.misnamed(description["capabilities"], settings.profile)
        if unknown:
            return Outcome(implementation, 2, None, f"{implementation.spec}: {unknown}")
        path = _free_path(settings.folder, implementation)
        session.stem = path.stem
        start = time.perf_counter()
        with ResultWriter(path, header) as writer:
            session.emit = writer.write
            broken = _run_pytest(session, quiet)
            for _ in shortest(session):
                pass
            # Of a part nobody knows yet what other parts saw: `kvproof merge` looks for stale entries.
            for result in () if settings.shard else ledger.stale(session.results, known):
                session.results.append(result)
                writer.write(result)
            footer = _footer(session, time.perf_counter() - start, broken)
            writer.close(footer)
    trouble = "\n".join(broken)
    return Outcome(implementation, footer.exit_status, path, trouble, interrupted=STOPPED in broken)


def _run_pytest(session: Session, quiet: bool) -> list[str]:
    with progress.bar(quiet) as shown:
        task = shown.add_task(session.name, total=None)

        def advance(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        plugin = Plugin(session, advance)
        saved = {k: os.environ.pop(k, None) for k in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # what the user has installed must not interfere
        try:
            # An empty configuration of our own: that of the folder it is started in is not meant for us.
            code = pytest.main(
                [
                    str(TESTS),
                    "-c",
                    str(TESTS / "pytest.ini"),
                    "--rootdir",
                    str(TESTS),
                    "-p",
                    "no:terminal",
                    "-p",
                    "no:cacheprovider",
                    "-p",
                    "no:faulthandler",
                    "--import-mode=importlib",
                ],
                plugins=[plugin],
            )
        finally:
            os.environ.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)
            os.environ.update({k: v for k, v in saved.items() if v is not None})
    if code == pytest.ExitCode.INTERRUPTED:
        plugin.broken.append(STOPPED)
    elif code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not plugin.broken:
        plugin.broken.append(f"pytest ended with {code!r}")
    return plugin.broken


def _footer(session: Session, seconds: float, broken: Sequence[str]) -> Footer:
    ran, failed, status = tally(session.results, session.spec.requirements.values())
    return Footer(
        complete=not broken,
        cases=session.cases,
        must_run=ran,
        failed=failed,
        exit_status=3 if broken else status,
        seconds=round(seconds, 3),
        left_out=dict(session.left_out),
    )


def _header(
    implementation: Implementation, settings: Settings, index: spec.Spec, capabilities: tuple[str, ...]
) -> Header:
    return Header(
        what="conformance",
        implementation=implementation.name,
        version=implementation.version,
        capabilities=capabilities,
        profile=settings.profile,
        seed=settings.seed,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["kvproof", *sys.argv[1:]]),
        environment=describe(),
        shard="{}/{}".format(*settings.shard) if settings.shard else "",
        requirements=tuple(
            r
            for r in index.requirements.values()
            if (not settings.requirements or r.id in settings.requirements)
            and r.status != "report"
            and (r.profile == settings.profile or r.status == "planned")
        ),
    )


def _not_here(
    implementation: Implementation, settings: Settings, index: spec.Spec, missing: dict[str, str]
) -> Outcome:
    """A file that says PRECONDITION for every requirement, and what would change that."""
    path = _free_path(settings.folder, implementation)
    reason = "; ".join(f"{what} is not here: {how}" for what, how in missing.items())
    with ResultWriter(path, _header(implementation, settings, index, ())) as writer:
        for r in index.requirements.values():
            if (r.status, r.profile) == ("active", settings.profile) and (
                not settings.requirements or r.id in settings.requirements
            ):
                writer.write(
                    Result(case="precondition", requirement=r.id, verdict=Verdict.PRECONDITION, reason=reason)
                )
        writer.close(Footer(complete=True, cases=0, must_run=0, failed=0, exit_status=0, seconds=0.0))
    return Outcome(implementation, 0, path, ran=False)


def _free_path(folder: Path, implementation: Implementation) -> Path:
    """A result file of its own for each, also where two adapters have one name."""
    name, number = file_name(implementation), 1
    while (path := folder / (f"{name}.jsonl" if number == 1 else f"{name}-{number}.jsonl")).exists():
        number += 1
    return path


def ledger_path(implementation: Implementation) -> Path:
    """known.toml beside the adapter."""
    if implementation.command or implementation.module.endswith(".py"):
        return Path(implementation.module).parent / "known.toml"
    found = find_spec(implementation.module)
    return Path(found.origin).parent / "known.toml" if found and found.origin else Path("known.toml")


def exit_status(judged: Sequence[Outcome]) -> int:
    """1 if anything failed, else 2 if one could not be opened, else 3 if anything is incomplete, else 0.

    3 as well where nothing was judged; what is not here beside others that were harms nothing.
    """
    counts = Counter(j.exit_status for j in judged)
    bad = next((status for status in (1, 2, 3) if counts[status]), 0)
    return bad if any(j.ran for j in judged) else bad or 3

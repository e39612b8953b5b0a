"""Result files made by hand, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kvproof import environment, spec
from kvproof.derived import Past
from kvproof.records import (
    Footer,
    Header,
    Judged,
    Observation,
    Operation,
    Requirement,
    Result,
    Sample,
    Verdict,
)
from kvproof.report.results import ResultWriter

HISTORY = (
    Operation(op="add", seq=0, tokens=(1, 2, 3, 4)),
    Operation(op="add", seq=1, tokens=(1, 2, 3, 4)),
)
SEEN = (
    Observation(
        outcome="ok", value=0, free=3, tables={0: (0, 1)}, refs={0: 1, 1: 1}, writes=((0, 0, 0, 0, 0),)
    ),
    Observation(outcome="ok", value=2, free=2, tables={0: (0, 1), 1: (0, 2)}, refs={0: 2}),
)
BAD = "KVP-PREFIX-002"
WHERE = "the KV of <script>alert(1)</script> (block 0, offset 1)"


def _header(
    name: str, what: Any, requirements: tuple[Requirement, ...] = (), started: str = "2026-01-01"
) -> Header:
    return Header(
        what=what,
        implementation=name,
        version="1.0",
        seed=0,
        started=started,
        command=f"kvproof {what} --impl {name}",
        environment=environment.describe(),
        requirements=requirements,
    )


def _footer(failed: int) -> Footer:
    return Footer(
        complete=True, cases=1, must_run=1, failed=failed, exit_status=int(bool(failed)), seconds=1.0
    )


def judged(path: Path, name: str, bad: Collection[str] = "", started: str = "2026-01-01") -> None:
    """A conformance file in which all requirements of managers hold, but those that are `bad`."""
    found = tuple(
        r for r in spec.load().requirements.values() if r.profile == "manager" and r.status == "active"
    )
    with ResultWriter(path, _header(name, "conformance", found, started)) as writer:
        for r in found:
            writer.write(
                Judged(id=f"c/{r.id}", aim=(r.id,), num_blocks=4, block_size=2, operations=2, note="a test")
            )
            if r.id in bad:
                failure: dict[str, Any] = {
                    "expected": "its own KV",
                    "got": WHERE,
                    "history": HISTORY,
                    "observed": SEEN,
                }
                where: dict[str, Any] = {
                    "num_blocks": 4,
                    "block_size": 2,
                    "step": 1,
                    "slot": (0, 1),
                    "replay": "kvproof replay x",
                }
                writer.write(Result(case="c", requirement=r.id, verdict=Verdict.FAIL, **failure, **where))
            else:
                writer.write(Result(case="c", requirement=r.id, verdict=Verdict.PASS))
        writer.close(_footer(int(bool(bad))))


def measured(path: Path, names: tuple[str, ...], points: int = 3) -> None:
    with ResultWriter(path, _header(", ".join(names), "bench")) as writer:
        for i, name in enumerate(names):
            for p in range(points):
                where: dict[str, Any] = {"sequences": 64 << p % 16, "form": f"list {p // 16}"}
                at: dict[str, Any] = {"median": 2.0 + i, "low": 1.9 + i, "high": 2.1 + i, "rounds": 5}
                writer.write(
                    Sample(
                        implementation=name, cell="decode_step", parameters=where, unit="ns/sequence", **at
                    )
                )
        writer.close(_footer(0))


def good_and_bad(folder: Path) -> list[Path]:
    """`good` holds all, `bad` all but BAD, and both are measured: three files, sorted."""
    judged(folder / "good.jsonl", "good")
    judged(folder / "bad.jsonl", "bad", BAD)
    measured(folder / "bench.jsonl", ("good", "bad"))
    return sorted(folder.glob("*.jsonl"))


def past(run: int, value: float, cpu: str = "this", **more: float) -> Past:
    """A line of a history, of the benchmark of one implementation: run 0 was on the first day of 2026."""
    started = (datetime(2026, 1, 1) + timedelta(days=run)).isoformat()
    about = {"started": started, "commit": f"{run:040}", "cpu": cpu, "what": "bench", "profile": "manager"}
    points = {f"{cell}: tokens 8": v for cell, v in ({"free": value} | more).items()}
    return Past.model_validate(about | {"implementation": "one", "points": points})

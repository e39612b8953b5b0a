"""What is said of two runs: verdicts, exact counters, times; and what a gate lets pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvproof import environment
from kvproof.cli import main
from kvproof.records import Footer, Header, Sample
from kvproof.report.results import ResultWriter
from kvproof.selftest.result_files import judged

CELLS = ("decode_step", "admit_cold", "free", "fork", "batch", "pool")
COUNTERS = {"requests_run": 10.0, "hits": 7.0, "evictions": 3.0, "host_s": 0.5}


def bench(
    path: Path,
    seed: int,
    slow: dict[str, float] | None = None,
    processes: int = 9,
    cpu: str = "",
    void: str = "",
    floor: float = 0.01,
    waited: float = 0.0,
    **counters: float,
) -> Path:
    """A run in which processes differ by 1 %, and the cells of `slow` take so many times their time."""
    rng = np.random.default_rng(seed)
    here = environment.describe()
    header = Header(
        what="bench",
        implementation="mine",
        seed=0,
        started="2026-01-01",
        command="kvproof bench",
        environment=here.model_copy(update={"cpu": cpu or here.cpu}),
    )
    with ResultWriter(path, header) as file:
        for cell in CELLS:
            times = tuple((slow or {}).get(cell, 1.0) * 100 * np.exp(rng.normal(0, 0.01, processes)))
            more: dict[str, Any] = {"processes": times, "cals": (50.0,) * processes} if processes > 1 else {}
            low, middle, high = (float(q) for q in np.quantile(times, (0.25, 0.5, 0.75)))
            at: dict[str, Any] = {"median": middle, "low": low, "high": high, "cal": 50.0, "rounds": 40}
            file.write(
                Sample(
                    implementation="mine",
                    cell=cell,
                    parameters={"n": 64},
                    unit="ns/x",
                    floor=floor,
                    counters={"waited": waited},
                    **at,
                    **more,
                )
            )
        many: dict[str, Any] = {"median": 5.0, "low": 5.0, "high": 5.0, "rounds": 10}
        file.write(
            Sample(
                implementation="mine",
                cell="replay",
                parameters={"requests": 10},
                unit="us/request",
                counters=COUNTERS | counters,
                **many,
            )
        )
        file.close(
            Footer(complete=True, cases=7, must_run=0, failed=0, exit_status=0, seconds=1.0, void=void)
        )
    return path


def compare(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["compare", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return bench(tmp_path / "before.jsonl", 1)


def test_equal_runs_are_the_same(before: Path, tmp_path: Path) -> None:
    status, said = compare("--gate", before, bench(tmp_path / "after.jsonl", 2))
    assert status == 0
    assert "times: 6 SAME, 1 UNCLEAR (1 of one process); SAME is within 1.1x" in said, (
        "the replay is of one process"
    )
    assert "slower" not in said.replace("0 slower", "")
    assert "faster" not in said


@pytest.mark.parametrize("cell", CELLS)
def test_a_planted_slowdown_is_named_and_nothing_else(before: Path, tmp_path: Path, cell: str) -> None:
    after = bench(tmp_path / "after.jsonl", 3, {cell: 1.3})
    status, said = compare(before, after)
    assert status == 0, "without a gate a time is told only"
    told = [line for line in said.splitlines() if line.startswith(("slower", "faster", "unclear"))]
    assert len(told) == 1
    assert told[0].startswith(f"slower  mine {cell}(n=64): 1.")
    assert "ns/x" in told[0]
    assert re.search(r"floor [12]\.\d%", told[0])
    assert compare(after, before)[1].count("faster ") == 1


def test_a_gate_wants_a_slowdown_twice(before: Path, tmp_path: Path) -> None:
    after, slow_too = (bench(tmp_path / f"{n}.jsonl", n, {"fork": 1.3}) for n in (3, 4))
    fine = bench(tmp_path / "fine.jsonl", 5, {"free": 1.3})
    status, said = compare("--gate", before, after)
    assert status == 0
    assert "--again FILE" in said
    assert compare("--gate", "--again", fine, before, after)[0] == 0, "another cell was slow"
    status, said = compare("--gate", "--again", slow_too, before, after)
    assert status == 1
    assert "gate: FAILED, 0 for the worse, 0 changed or gone, 1 slower by more than 1.1x in two runs" in said
    assert compare("--gate", "--again", slow_too, "--bound", "1.5", before, after)[0] == 0


def test_exact_counters_gate(before: Path, tmp_path: Path) -> None:
    after = bench(tmp_path / "after.jsonl", 2, hits=8.0, host_s=0.9)
    status, said = compare(before, after)
    assert status == 0
    assert "changed mine replay(requests=10): hits 7 -> 8" in said
    assert "host_s" not in said, "a time is no exact counter"
    assert compare("--gate", before, after)[0] == 1
    stopped = bench(tmp_path / "stopped.jsonl", 2, hits=4.0, requests_run=6.0)
    assert "changed" not in compare(before, stopped)[1], "time ran out on it: it has counted less"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"processes": 1}, "7 UNCLEAR (7 of one process)"),
        ({"processes": 4}, "7 UNCLEAR"),
        ({"cpu": "another"}, "two machines"),
        ({"void": "it drifted"}, "VOID after.jsonl: it drifted"),
        ({"floor": 0.4}, "floor 40.0%"),
        ({"waited": 0.3}, "7 UNCLEAR (1 of one process)"),
    ],
)
def test_a_slowdown_that_is_not_certain(before: Path, tmp_path: Path, more: Any, told: str) -> None:
    _, said = compare(before, bench(tmp_path / "after.jsonl", 2, {"fork": 1.3}, **more))
    assert told in said
    assert "slower  " not in said
    assert ("unclear mine fork" in said) == ("void" not in more)


def test_times_that_cannot_be_are_named(before: Path, tmp_path: Path) -> None:
    good = before.read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.jsonl"
    for old, new in ((r'"median":', '"median":-'), (r'"cals":\[(\d)', r'"cals":[1.0,\1')):
        wrong.write_text(re.sub(old, new, good), encoding="utf-8")
        status, said = compare(before, wrong)
        assert status == 2
        assert "allowed are times above 0, with one cal each" in " ".join(said.split())
    for old, new in ((r'"floor":', '"floor":-'), (r'"floor":[0-9.]*', '"floor":NaN'), (r"7\.0", "Infinity")):
        wrong.write_text(re.sub(old, new, good), encoding="utf-8")
        status, said = compare(before, wrong)
        assert status == 2
        assert re.search("Error: wrong.jsonl:[0-9]*: sample.*: Input should be", " ".join(said.split())), said
    assert compare("--bound", "nan", before, before)[0] == 2
    assert compare("--bound", "inf", before, before)[0] == 2


def test_folders_hold_both_kinds(before: Path, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    bench(old / "bench.jsonl", 1)
    bench(new / "bench.jsonl", 2, {"pool": 1.4})
    judged(old / "mine.jsonl", "mine")
    judged(new / "mine.jsonl", "mine", bad="KVP-POOL-001")
    judged(old / "other.jsonl", "other")
    status, said = compare(old, new)
    assert status == 1
    assert "broken  mine: KVP-POOL-001: PASS -> FAIL" in said
    assert "gone    other as manager: all of it" in said
    assert "slower  mine pool" in said
    assert said.index("broken") < said.index("slower") < said.index("gone")
    status, said = compare(old / "other.jsonl", before)
    assert status == 2
    assert "a run of one kind in common" in said
    bench(old / "again" / "bench.jsonl", 1)
    status, said = compare(old, new)
    assert status == 2
    assert "there twice: name one run a side" in " ".join(said.split())


def test_a_busier_machine_is_not_a_slowdown(before: Path, tmp_path: Path) -> None:
    after = bench(tmp_path / "after.jsonl", 2, dict.fromkeys(CELLS, 1.25))
    status, said = compare("--gate", before, after)
    assert status == 3
    assert "VOID: half of all times differ by more than 2" in said
    assert "gate: no answer" in said
    assert said.count("unclear mine") == 6
    a_little = bench(tmp_path / "a_little.jsonl", 2, dict.fromkeys(CELLS, 1.02) | {"fork": 1.3})
    told = [
        x for x in compare("--gate", before, a_little)[1].splitlines() if x.startswith(("slower", "faster"))
    ]
    assert len(told) == 1, "what all have in common is no news"
    assert "mine fork" in told[0]


# ---------------------------------------------------------------- the committed run of this machine


def compared_with_baseline(where: Path, *runs: Path) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        done = CliRunner().invoke(main, ["compare", "--baseline", *map(str, runs)])
    return done.exit_code, done.output


def test_a_run_is_compared_with_the_baseline_of_its_machine(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "baselines"
    for name in ("ours", "theirs"):
        (kept / name).mkdir(parents=True)
    bench(kept / "theirs" / "bench.jsonl", 1, cpu="Another CPU")
    after = bench(tmp_path / "after.jsonl", 2, {"pool": 1.5})
    status, said = compared_with_baseline(tmp_path, after)
    assert status == 2
    assert "no baseline of" in said
    assert "theirs: Another CPU" in said
    bench(kept / "ours" / "bench.jsonl", 3)
    status, said = compared_with_baseline(tmp_path, after)
    assert status == 0, said
    assert re.findall(r"slower +mine (\w+)", said) == ["pool"]


def test_a_run_of_a_part_has_lost_nothing_of_the_baseline(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "baselines" / "ours"
    kept.mkdir(parents=True)
    bench(kept / "bench.jsonl", 3)
    lines = bench(tmp_path / "whole.jsonl", 2).read_text(encoding="utf-8").splitlines()
    part = tmp_path / "part.jsonl"
    part.write_text("\n".join(x for x in lines if '"cell":"pool"' not in x) + "\n", encoding="utf-8")
    status, said = compared_with_baseline(tmp_path, part)
    assert status == 0, said
    assert "gone" not in said


def test_without_a_baseline_compare_says_what_it_needs(tmp_path: Path) -> None:
    after = bench(tmp_path / "after.jsonl", 2)
    assert "no baseline: results/baselines" in compared_with_baseline(tmp_path, after)[1]
    assert "give AFTER" in compared_with_baseline(tmp_path, after, after)[1].replace("\n", " ")
    done = CliRunner().invoke(main, ["compare", str(after)])
    assert done.exit_code == 2
    assert "--baseline" in done.output

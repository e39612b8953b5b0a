"""Two versions in turns: which pairs count, what is asked again, and a real run of both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvproof import environment
from kvproof.bench.turns import TurnError, take
from kvproof.records import Footer, Header, Sample
from kvproof.report.compare import differences
from kvproof.report.results import ResultWriter, read

ROOT = Path(__file__).parents[3]
CAL, BUSY = 100.0, 140.0


class Program:
    """Stands in for `kvproof bench`: what each of its runs measures, and with which arguments it was run."""

    def __init__(self, before: Path, slower: float = 1.0) -> None:
        self.before, self.slower = before, slower
        self.runs: list[tuple[str, list[str]]] = []
        self.busy: set[int] = set()
        """Numbers of the runs in which the machine is."""
        self.times: dict[int, float] = {}
        """Of some runs, instead of 10."""
        self.status = 0
        self.machine = environment.describe()

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        side = "before" if options["cwd"] == self.before else "after"
        number = len(self.runs)
        self.runs.append((side, command))
        folder = Path(command[command.index("--results") + 1])
        if self.status:
            return subprocess.CompletedProcess(command, self.status, "", "Error: cell 'x': allowed are y\n")
        if "--shard" in command and not command[command.index("--shard") + 1].startswith("1/"):
            return subprocess.CompletedProcess(command, 3, "nothing to measure\n", "")
        cal = BUSY if number in self.busy else CAL
        time = self.times.get(number, 10.0) * (self.slower if side == "after" else 1.0)
        time *= (1 + 0.001 * (number // 2)) * cal / CAL
        header = Header(
            what="bench", implementation="plain", seed=0, started=f"{number}", command="",
            environment=self.machine, shard="1/8",
        )  # fmt: skip
        with ResultWriter(folder / "bench.jsonl", header) as file:
            file.write(sample("free", time, cal))
            file.write(sample("pool", 7.0, CAL))
            file.close(Footer(complete=True, cases=2, must_run=0, failed=0, exit_status=0, seconds=1.0))
        return subprocess.CompletedProcess(command, 0, "", "")


def sample(cell: str, time: float, cal: float) -> Sample:
    return Sample(
        implementation="plain", cell=cell, parameters={"tokens": 64}, unit="ns/block", median=time, low=time,
        high=time, rounds=5, cal=cal, per_cal=time / cal,
    )  # fmt: skip


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program(tmp_path / "old")
    monkeypatch.setattr(subprocess, "run", found)
    return found


def measured(program: Program, folder: Path, cells: tuple[str, ...] = (), number: int = 10) -> list[Path]:
    return take(program.before, ["--impl", "plain"], cells, number, folder, lambda _: None)


def test_a_slowdown_is_found_and_nothing_else(program: Program, tmp_path: Path) -> None:
    program.slower = 1.05
    paths = measured(program, tmp_path)
    assert [p.parent.name for p in paths] == ["before", "after"]
    before, after = ([read(p)] for p in paths)
    found = differences(before, after)
    assert [item.word for item in found.items] == ["slower"]
    assert "plain free(tokens=64): 1.05x" in found.items[0].text
    assert found.counted() == "1 SAME, 1 SLOWER"
    assert differences(after, before).counted() == "1 FASTER, 1 SAME"


def test_both_are_run_in_changing_order_and_only_what_is_timed_again(
    program: Program, tmp_path: Path
) -> None:
    measured(program, tmp_path, number=8)
    first, later = program.runs[:16], program.runs[16:]
    assert all("--shard" in c for _, c in first)
    assert [side for side, _ in later] == ["after", "before", "before", "after"] * 3 + ["after", "before"]
    for _, c in later:
        assert c[c.index("--impl") : c.index("--turn")] == [
            "--impl",
            "plain",
            "--cell",
            "free",
            "--cell",
            "pool",
        ]


def test_disturbed_pairs_are_measured_again_and_left_out(program: Program, tmp_path: Path) -> None:
    program.busy = {5}
    program.times = {5: 30.0}
    before, after = (read(p) for p in measured(program, tmp_path, cells=("free",), number=8))
    again = [c[c.index("--impl") : c.index("--turn")] for _, c in program.runs[16:]]
    assert again == [["--impl", "plain", "--cell", "free"]] * 2
    assert [len(s.processes) for s in (*before.samples, *after.samples)] == [8, 9, 8, 9]
    assert max(after.samples[0].processes + before.samples[0].processes) < 11, "the disturbed pair is out"


def test_last_words_are_told(program: Program, tmp_path: Path) -> None:
    program.status = 2
    with pytest.raises(TurnError, match="ended with status 2: Error: cell 'x': allowed are y"):
        measured(program, tmp_path)


def test_it_is_said_if_nothing_can_be_measured(program: Program, tmp_path: Path) -> None:
    program.status = 3
    with pytest.raises(TurnError, match="nothing was measured"):
        measured(program, tmp_path)


def test_one_real_turn_runs_the_code_of_the_other_checkout(tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "src").mkdir(parents=True)
    for where, words in ((old / "src", "no such sequence"), (tmp_path, "")):
        (where / "kvproof_words.py").write_text(f"WORDS = {words!r}\n", encoding="utf-8")
    adapter = (
        "from kvproof_words import WORDS\n"
        "from kvproof_impls.plain.manager import PlainManager\n"
        "class Free(PlainManager):\n"
        "    def free(self, seq):\n"
        "        if WORDS: raise KeyError(WORDS)\n"
        "        super().free(seq)\n"
        "def make(num_blocks, block_size):\n"
        "    return Free(num_blocks, block_size, frozenset())\n"
    )
    for where in (old, tmp_path):
        (where / "adapter.py").write_text(adapter, encoding="utf-8")
    command = [sys.executable, "-m", "kvproof.cli", "bench", "--impl", "./adapter.py", "--cell", "free"]
    command += ["--against", "old", "--rounds", "1", "--results", str(tmp_path / "runs"), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    before, after = (read(Path(told["path"])).samples for told in document["files"])
    assert {s.cell for s in before} == {"free"}
    assert any(s.rounds for s in after)
    assert not any(s.rounds for s in before)
    assert {d["word"] for d in document["differences"]} == {"fixed"}
    assert "KeyError: 'no such sequence' -> a number" in document["differences"][0]["what"]

"""Two versions in turns: which pairs count, what is asked again, and a real run of both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof import environment
from kvproof.bench import baton
from kvproof.bench.turns import Side, TurnError, take
from kvproof.cli import main
from kvproof.records import Footer, Header, Sample
from kvproof.report.compare import differences
from kvproof.report.results import ResultWriter, read

ROOT = Path(__file__).parents[3]
CAL, BUSY = 100.0, 140.0


class Program:
    """Stands in for `kvproof bench`: what each of its runs measures, and with which arguments it was run."""

    def __init__(self) -> None:
        self.slower = 1.0
        self.runs: list[tuple[str, list[str]]] = []
        self.busy: set[int] = set()
        """Numbers of the runs in which the machine is."""
        self.times: dict[int, float] = {}
        """Of some runs, instead of 10."""
        self.words = ""
        """What each says that measures nothing."""
        self.more: dict[str, tuple[str, ...]] = {}
        """Of before and after: cells that take as long as `free`."""
        self.machine = environment.describe()

    def start(self, side: Side, arguments: list[str], turn: int, into: Path) -> list[str]:
        number = len(self.runs)
        self.runs.append((side.name, arguments))
        if self.words:
            return [self.words]
        cal = BUSY if number in self.busy else CAL
        time = self.times.get(number, 10.0) * (self.slower if side.name == "after" else 1.0)
        time *= (1 + 0.1 * (turn % 7)) * cal / CAL  # moments differ, by what the loop does not see
        header = Header(
            what="bench", implementation="plain", seed=0, started=f"{number}", command="",
            environment=self.machine,
        )  # fmt: skip
        with ResultWriter(into / side.name / "bench.jsonl", header) as file:
            file.write(sample("free", time, cal))
            for cell in self.more.get(side.name, ()):
                file.write(sample(cell, time, cal))
            file.write(sample("pool", 7.0, CAL))
            file.write(sample("waste", 4.0, None).model_copy(update={"unit": "% of slots"}))
            file.close(Footer(complete=True, cases=3, must_run=0, failed=0, exit_status=0, seconds=1.0))
        return []


def sample(cell: str, time: float, cal: float | None) -> Sample:
    return Sample(
        implementation="plain", cell=cell, parameters={"tokens": 64}, unit="ns/block", median=time, low=time,
        high=time, rounds=5, cal=cal, per_cal=time / cal if cal else None,
    )  # fmt: skip


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program()
    monkeypatch.setattr(Side, "start", lambda *given: found.start(*given))
    monkeypatch.setattr(baton, "alternate", lambda starts, _: [(0, start()) for start in starts])
    return found


def measured(folder: Path, cells: tuple[str, ...] = (), number: int = 10) -> list[Path]:
    return take(folder / "old", ["--impl", "plain"], cells, number, folder, lambda _: None)


def test_a_slowdown_is_found_and_nothing_else(program: Program, tmp_path: Path) -> None:
    program.slower = 1.05
    paths = measured(tmp_path)
    assert [p.parent.name for p in paths] == ["before", "after"]
    before, after = ([read(p)] for p in paths)
    found = differences(before, after)
    assert [item.word for item in found.items] == ["slower"]
    assert "plain free(tokens=64): 1.05x" in found.items[0].text
    assert found.counted() == "1 SAME, 1 SLOWER"
    assert differences(after, before).counted() == "1 FASTER, 1 SAME"


def test_the_order_changes_and_only_what_is_timed_is_run_again(program: Program, tmp_path: Path) -> None:
    before, after = (read(p) for p in measured(tmp_path))
    assert [side for side, _ in program.runs] == ["before", "after", "after", "before"] * 5
    first, later = program.runs[:2], program.runs[2:]
    assert all(arguments == ["--impl", "plain"] for _, arguments in first)
    assert all(a == ["--impl", "plain", "--cell", "free", "--cell", "pool"] for _, a in later)
    assert [len(s.processes) for s in (*before.samples, *after.samples)] == [10, 10, 10] * 2


def test_what_is_unclear_is_measured_again_and_disturbed_pairs_are_left_out(
    program: Program, tmp_path: Path
) -> None:
    program.busy = {1, 2, 5, 6, 9}  # all of them "after"
    before, after = (read(p) for p in measured(tmp_path, cells=("free",)))
    more = program.runs[20:]
    assert all(arguments == ["--impl", "plain", "--cell", "free"] for _, arguments in more)
    assert 6 <= len(more) <= 10, "three turns leave two disturbed pairs of ten, five none"
    assert [len(s.processes) for s in before.samples] == [10, 10 + len(more) // 2, 10 + len(more) // 2]
    assert [len(s.processes) for s in after.samples] == [len(s.processes) for s in before.samples]
    assert differences([before], [after]).counted() == "2 SAME"


def test_a_small_difference_asks_for_more_pairs(program: Program, tmp_path: Path) -> None:
    program.slower = 1.05
    program.times = {1: 9.5}
    before, after = (read(p) for p in measured(tmp_path))
    assert program.runs[20:], "nine of ten do not tell"
    assert differences([before], [after]).counted() == "1 SAME, 1 SLOWER"


def test_a_slowdown_of_most_cells_is_told(program: Program, tmp_path: Path) -> None:
    program.slower, cells = 1.05, ("admit_cold", "batch", "evict", "fork")
    program.more = {"before": cells, "after": cells}
    before, after = (read(p) for p in measured(tmp_path))
    found = differences([before], [after])
    assert found.counted() == "1 SAME, 5 SLOWER"
    assert not found.void


def test_a_busy_machine_tells_a_difference_at_last(program: Program, tmp_path: Path) -> None:
    program.slower, program.busy = 1.3, set(range(6, 100))
    before, after = (read(p) for p in measured(tmp_path))
    assert len(program.runs) == 2 * 28
    assert differences([before], [after]).counted() == "1 SAME, 1 SLOWER"


def test_what_one_version_has_alone_is_measured_once(program: Program, tmp_path: Path) -> None:
    program.more = {"after": ("fork",)}
    before, after = (read(p) for p in measured(tmp_path))
    assert not any("fork" in arguments for _, arguments in program.runs[2:])
    assert [item.word for item in differences([before], [after]).items] == ["new"]


def test_added_turns_that_are_broken_off_leave_what_was_asked_for(program: Program, tmp_path: Path) -> None:
    program.slower = 1.05

    def tell(turn: str) -> None:
        if turn == "turn 12 of at most 30, 1 of the cells again":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(tmp_path, ["--impl", "plain"], ["free"], 10, tmp_path, tell)
    before, after = (read(tmp_path / side / "bench.jsonl") for side in ("before", "after"))
    assert [len(s.processes) for s in before.samples] == [11, 11, 11]
    assert differences([before], [after]).counted() == "2 SAME", "11 pairs do not tell 5 %"


def test_few_turns_stay_few(program: Program, tmp_path: Path) -> None:
    program.slower = 1.05
    before, after = (read(p) for p in measured(tmp_path, number=9))
    assert len(program.runs) == 18
    assert differences([before], [after]).counted() == "2 UNCLEAR"


def test_last_words_are_told(program: Program, tmp_path: Path) -> None:
    program.words = "cell 'x': allowed are y"
    with pytest.raises(
        TurnError, match="before: its process ended in turn 1 with status 0: cell 'x': allowed"
    ):
        measured(tmp_path)


def test_what_was_measured_is_kept_if_it_is_broken_off(program: Program, tmp_path: Path) -> None:
    def tell(turn: str) -> None:
        program.words = "Segmentation fault" if turn.startswith("turn 4") else ""

    with pytest.raises(TurnError, match="in turn 4"):
        take(tmp_path, ["--impl", "plain"], ["free"], 10, tmp_path, tell)
    before, after = (read(path) for path in sorted(tmp_path.glob("*/bench.jsonl"), reverse=True))
    assert not before.footer.complete
    assert [len(s.processes) for s in after.samples] == [3, 3, 3]


PASSES = """
import sys
from kvproof.bench.baton import waiting
wait = waiting()
for point in range(int(sys.argv[2])):
    wait(point)
    with open("log", "a") as file:
        file.write(sys.argv[1])
print("done")
"""


def test_a_baton_goes_round(tmp_path: Path) -> None:
    said = baton.alternate([player(tmp_path, PASSES, *a) for a in (("a", "4"), ("b", "2"), ("c", "0"))], 60)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "ababaa"
    assert said == [(0, ["done"])] * 3


def player(folder: Path, program: str, *arguments: str) -> Callable[[], subprocess.Popen[str]]:
    return lambda: subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def test_who_hangs_crashes_or_leaves_somebody_behind_holds_nobody_up(tmp_path: Path) -> None:
    hangs = "import time; time.sleep(600)"
    dies = "import os, signal; print('last words', end='', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    odd = "import os; os.write(1, b'half a line'); os.write(1, b'\\x1eready\\n\\xff'); input(); print()"
    leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{hangs}'])"
    (hung, late), *ended = baton.alternate([player(tmp_path, p) for p in (hangs, dies, odd, leaves)], 8)
    assert hung < 0
    assert late == ["it was over one point for more than 8 s, and was ended"]
    assert ended == [(-11, ["last words"]), (0, ["half a line", "\ufffd"]), (0, [])]


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


@pytest.mark.parametrize(
    ("against", "impl", "said"),
    [(".", "./a.py", "it is this folder"), ("old", "../a.py:make", "this is one file for both"),
     ("old", "/a.py", "this is one file for both")],
)  # fmt: skip
def test_one_version_is_not_compared_with_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, against: str, impl: str, said: str
) -> None:
    (tmp_path / "old").mkdir()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["bench", "--against", against, "--impl", impl, "--results", "runs"])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split()).replace("│ ", "").replace(" │", "")
    assert not list(tmp_path.glob("runs/*"))

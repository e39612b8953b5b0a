"""Timed cells in processes of their own: how they are combined, and a slowdown planted in one operation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from kvproof import environment
from kvproof.bench import rounds
from kvproof.bench.matrix import Point
from kvproof.bench.plan import Plan
from kvproof.bench.run import ROUND_S, measure
from kvproof.bench.subject import Subject, open_subject
from kvproof.bench.traces import synthetic
from kvproof.cli import main
from kvproof.comparing import Difference
from kvproof.records import Footer, Header, Sample
from kvproof.report.compare import Compared, differences
from kvproof.report.results import ResultFile, ResultWriter, read
from kvproof.selftest.bench_calls import SMALL, full
from kvproof.selftest.bench_standin import __file__ as standin
from kvproof.stats import median
from kvproof.subjects import find

PLANTED = "decode_step"
CALM = 1.15
"""Where the slowest process takes less than this of the fastest, 1.3 times the time leaves no overlap."""
POINTS = [
    Point(PLANTED, {"sequences": 256, "caching": False, "order": "same", "form": "list"}),
    Point("admit_cold", {"tokens": 4096, "form": "list"}),
    Point("free", {"tokens": 4096, "caching": False}),
    Point("pool", {"blocks": 2048}),
]


def opened(factory: str, name: str) -> Subject:
    found = open_subject(find(f"{standin}:{factory}"), 16)
    found.name = name
    return found


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """One real run of 5 rounds: one subject twice, and its slowed twin."""
    names = {"one": "make_uncached", "twin": "make_uncached", "slowed": "make_slowed"}
    found: list[Sample] = []
    subjects = [opened(factory, name) for name, factory in names.items()]
    assert rounds.measure(subjects, POINTS, rounds.Shape(5, 0.03), found.append, lambda _: None) == []
    return found


def only(samples: Sequence[Sample], name: str, folder: Path) -> ResultFile:
    """What a run found of one subject, as a file of its own."""
    header = Header(
        what="bench", implementation=name, seed=0, started="", command="", environment=environment.describe()
    )
    with ResultWriter(folder / f"{name}.jsonl", header) as file:
        for s in samples:
            if s.implementation == name:
                file.write(s)
        file.close(
            Footer(
                complete=True,
                cases=4,
                must_run=0,
                failed=0,
                exit_status=0,
                seconds=1,
                void=rounds.void(samples),
            )
        )
    return read(folder / f"{name}.jsonl")


def spread(s: Sample) -> float:
    times = [t / c for t, c in zip(s.processes, s.cals, strict=True)]
    return max(times) / min(times)


def told(found: Compared) -> list[str]:
    return [item.text.split()[1].split("(")[0] for item in found.items if item.word in ("slower", "faster")]


def test_a_round_is_a_process_and_the_median_is_theirs(samples: list[Sample]) -> None:
    assert len(samples) == 3 * len(POINTS), "the control is no implementation of its own"
    for s in samples:
        assert 5 <= len(s.processes) == len(s.cals) <= 5 + rounds.MORE
        assert len(set(s.processes)) > 1
        assert s.median == median(s.processes)
        assert s.low <= s.median <= s.high
        assert s.floor is not None
        assert s.floor >= 0
        assert ("ratio" in s.counters) == (s.implementation != "one")
        assert s.counters["freed" if s.cell == "free" else "blocks"] > 0, "counted in each, and alike"


def test_a_planted_slowdown_is_named_and_equal_ones_are_not(samples: list[Sample], tmp_path: Path) -> None:
    """Certain where processes differ little; elsewhere it may be unclear, and is never called the same."""
    one, twin, slowed = (only(samples, name, tmp_path) for name in ("one", "twin", "slowed"))
    found, equal = differences([one], [slowed]), differences([one], [twin])
    planted = next(c for key, c in found.times.items() if key[1] == PLANTED)
    if max(map(spread, samples)) < CALM:
        assert told(found) == [PLANTED], found.lines()
        assert differences([slowed], [one]).lines()[0].startswith("faster")
    else:
        assert planted.verdict is not Difference.SAME
    for c in equal.times.values():  # one in a hundred may be told by chance, never by much on a calm machine
        assert c.verdict not in (Difference.SLOWER, Difference.FASTER) or abs(c.ratio - 1) < CALM - 1
    assert not (found.void and told(found))


def sample(floor: float | None) -> Sample:
    return Sample(
        implementation="x",
        cell="pool",
        parameters={},
        unit="ns",
        median=1,
        low=1,
        high=1,
        rounds=5,
        floor=floor,
    )


def test_a_run_that_drifts_is_void() -> None:
    assert rounds.void([sample(f) for f in (0.01, 0.2, 0.02, None)]) == ""
    assert "12.0% apart in half of the cells" in rounds.void([sample(f) for f in (0.01, 0.12, 0.2)])
    assert rounds.void([sample(None)]) == ""


def test_a_void_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "DRIFT", -1.0)
    monkeypatch.setitem(ROUND_S, True, 0.02)
    said = io.StringIO()
    points = [Point("fork", SMALL["fork"]), Point("pool", {"blocks": 256})]
    plan = Plan([opened("make_uncached", "one")], points, synthetic(0, 10), (), True, 0, rounds=2)
    assert measure(plan, tmp_path, Console(file=said, width=300), False) == 0
    found = read(next(tmp_path.rglob("bench.jsonl")))
    assert found.footer.void
    assert f"VOID: {found.footer.void}" in said.getvalue()
    assert "equal ones" in (tmp_path / found.path.parent / "bench.md").read_text()
    fork, pool = found.samples[:2]
    assert fork.note.startswith("unsupported: no capability fork")
    assert 2 <= len(pool.processes) <= 2 + rounds.MORE
    assert any("VOID" in line for line in next(tmp_path.rglob("bench.md")).read_text().splitlines())


def test_a_process_that_dies_is_a_finding(tmp_path: Path) -> None:
    dying = tmp_path / "dying.py"
    dying.write_text(
        "import os\nfrom kvproof.selftest.bench_standin import Uncached\n"
        "class Dying(Uncached):\n    def free(self, seq):\n        os._exit(7)\n"
        "def make(num_blocks, block_size):\n    return Dying(num_blocks, block_size)\n"
    )
    subject, samples = open_subject(find(f"{dying}:make"), 16), list[Sample]()
    points = [
        Point("admit_cold", {"tokens": 64, "form": "list"}),
        Point("free", {"tokens": 64, "caching": False}),
    ]
    assert rounds.measure([subject], points, rounds.Shape(1, 0.01), samples.append, lambda _: None) == []
    assert samples[1].note.startswith("INVALID: its process ended with status 7")
    assert samples[1].rounds == 0


def test_what_cannot_be_opened_elsewhere_says_so() -> None:
    samples: list[Sample] = []
    rounds.measure([full()], POINTS[:1], rounds.Shape(2, 0.01), samples.append, lambda _: None)
    assert [s.note for s in samples] == ["unsupported: cannot be opened in another process"]


def test_rounds_of_nothing_are_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["bench", "--impl", "plain", "--cell", "waste", "--noisy", "--results", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "none of these cells is measured in several processes" in done.output


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who is left in the background keeps nothing waiting."""
    hanging = tmp_path / "hanging.py"
    hanging.write_text(
        "import subprocess, time\nfrom kvproof.selftest.bench_standin import Uncached\n"
        "class Hanging(Uncached):\n    def free(self, seq):\n        time.sleep(600)\n"
        "def make(num_blocks, block_size):\n"
        "    subprocess.Popen(['sleep', '600'])\n    return Hanging(num_blocks, block_size)\n"
    )
    monkeypatch.setattr(rounds, "LONGEST_S", 4.0)
    subject, samples = open_subject(find(f"{hanging}:make"), 16), list[Sample]()
    rounds.measure([subject], POINTS[2:3], rounds.Shape(1, 0.01), samples.append, lambda _: None)
    assert samples[0].note.startswith("INVALID: its process hung: it was ended after 8 s")

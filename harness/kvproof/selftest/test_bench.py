"""The benchmark's machinery on a stand-in: matrix, cells and their checks, a run, its files."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvproof import spec
from kvproof.bench import brief, cells, memory
from kvproof.bench.apart import measure_memory
from kvproof.bench.clock import calibrate, quiet
from kvproof.bench.matrix import APART, ATTENTION, RANKS, BadMatrix, Point, load
from kvproof.bench.measure import MOST_TIMED, WARM_UP, Job, predict
from kvproof.bench.run import Plan, measure, run
from kvproof.bench.subject import Subject, Unsupported, Wrong, open_subject
from kvproof.bench.traces import synthetic
from kvproof.bench.work import MAX_ROUNDS, expect
from kvproof.records import Sample
from kvproof.report.results import read
from kvproof.selftest import bench_standin as standin
from kvproof.subjects import find

ADAPTER = str(Path(standin.__file__)) + ":make"
SMALL: dict[str, dict[str, Any]] = {
    "decode_step": {"sequences": 5, "caching": True, "order": "changing", "form": "list"},
    "admit_cold": {"tokens": 70, "form": "array"},
    "admit_prefix": {"tokens": 64, "cached": 1.0, "form": "list"},
    "free": {"tokens": 70, "caching": False},
    "fork": {"tokens": 70},
    "batch": {"sequences": 3, "blocks": 4, "order": "changing"},
    "pool": {"blocks": 256},
    "evict": {"blocks": 256, "prompt_blocks": 16},
}


def subject(manager: Callable[[int, int], Any] = standin.Standin, **more: Any) -> Subject:
    return Subject(getattr(manager, "__name__", "?"), manager, 16, **more)


def full(manager: Callable[[int, int], Any] = standin.Standin) -> Subject:
    return subject(manager, make_uncached=standin.Uncached)


def plain_pedantic(target: Any, setup: Any, teardown: Any, rounds: int) -> list[float]:
    """What pytest-benchmark does with these arguments, with a clock that counts."""
    for _ in range(rounds):
        arguments, _options = setup()
        target(*arguments)
        teardown(*arguments)
    return [1e-6 * (i + 1) for i in range(rounds)]


def measured(*subjects: Subject, point: Point, budget_s: float = 0.001) -> list[Sample]:
    samples: list[Sample] = []
    Job(subjects, [point], budget_s, samples.append).measure(point, plain_pedantic)
    return samples


# ---------------------------------------------------------------- clock and matrix


def test_calibration_is_a_time() -> None:
    assert 1 < calibrate() < 1e6


def test_quiet_switches_collection_off_and_on_again() -> None:
    assert gc.isenabled()
    with quiet():
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_matrix_names_every_cell_and_quick_is_smaller() -> None:
    everything, quick = load(spec.find(), None, False), load(spec.find(), None, True)
    assert {p.cell for p in everything} == {*cells.CELLS, *APART, *RANKS, *ATTENTION}
    assert {p.cell for p in quick} == {*cells.CELLS, *APART, *RANKS, *ATTENTION}
    assert len(quick) < len(everything)
    assert {p.cell for p in load(spec.find(), ["fork", "pool"], True)} == {"fork", "pool"}


@pytest.mark.parametrize(
    ("text", "chosen", "named"),
    [
        ("[walk]\n", None, "cell 'walk': allowed are decode_step"),
        ("[fork]\nparameters = { tokens = [1] }\n", ["leap"], "cell 'leap'"),
        ("[fork]\nparameters = { tokens = [1] }\nspeed = 1\n", None, "allows text, parameters"),
        ("[fork]\nparameters = { tokens = [1] }\nquick = { pages = [1] }\n", None, "allows text, parameters"),
    ],
)
def test_a_bad_matrix_is_named(tmp_path: Path, text: str, chosen: list[str] | None, named: str) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "manager.toml").write_text(text)
    with pytest.raises(BadMatrix) as e:
        load(tmp_path, chosen, True)
    assert named in str(e.value)


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize("cell", [c for c in SMALL if c != "fork"])
def test_a_right_manager_passes_every_cell(cell: str) -> None:
    (sample,) = measured(full(), point=Point(cell, SMALL[cell]))
    assert sample.note == ""
    assert sample.rounds >= 5
    assert sample.median > 0
    assert sample.low <= sample.median <= sample.high
    assert sample.per_cal == pytest.approx(sample.median / (sample.cal or 0))


def test_cells_name_what_is_not_supported() -> None:
    def note(s: Subject, cell: str) -> str:
        (sample,) = measured(s, point=Point(cell, SMALL[cell]))
        assert (sample.rounds, sample.median) == (0, 0.0)
        return sample.note

    assert note(full(), "fork") == "unsupported: no capability fork"
    assert note(subject(), "free") == "unsupported: caching cannot be switched off"
    assert note(subject(standin.Uncached), "admit_prefix") == "unsupported: no prefix cache"


class ListsOnly(standin.Standin):
    def add(self, seq: int, tokens: Any) -> int:
        if not isinstance(tokens, list):
            raise TypeError("lists only")
        return super().add(seq, tokens)


class Late(standin.Standin):
    """Forgets to grow at a block boundary."""

    def append(self, seq: int, tokens: Any) -> None:
        self.tokens[seq] += tokens


class ShiftedSlots(standin.Standin):
    def append_batch(self, seqs: Any, tokens: Any) -> list[int]:
        return [s + 1 for s in super().append_batch(seqs, tokens)]


class StaleRows(standin.Standin):
    def batch(self, seqs: Any) -> Any:
        table, blocks, lengths = super().batch(seqs)
        table[0, 0] = table[-1, 0]
        return table, blocks, lengths


class Exploding(standin.Standin):
    def commit(self, seq: int, computed: int) -> None:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("manager", "cell", "named"),
    [
        (Late, "decode_step", "IndexError"),
        (standin.Boaster, "evict", "cached tokens is"),
        (standin.Boaster, "admit_prefix", "free blocks"),
        (standin.Leaker, "admit_prefix", "free blocks after the free"),
        (standin.Leaker, "pool", "free blocks"),
        (standin.Greedy, "decode_step", "blocks of a table is"),
        (ShiftedSlots, "batch", "the slot of the new token"),
        (StaleRows, "batch", "row 0 of the batch tensor"),
        (Exploding, "admit_prefix", "RuntimeError: boom"),
    ],
)
def test_a_wrong_result_is_invalid_and_has_no_number(
    manager: type[standin.Standin], cell: str, named: str
) -> None:
    parameters = SMALL[cell]
    if manager is standin.Boaster and cell == "admit_prefix":
        parameters, named = {"tokens": 70, "cached": 0.0, "form": "list"}, "cached tokens is 64, expected 0"
    good, bad = measured(full(), subject(manager), point=Point(cell, parameters))
    assert good.note == ""
    assert bad.note.startswith("INVALID: ")
    assert named in bad.note
    assert bad.rounds == 0


def test_list_only_managers_are_left_out_of_the_array_cells() -> None:
    point = Point("admit_prefix", {"tokens": 64, "cached": 0.5, "form": "array"})
    (sample,) = measured(subject(ListsOnly), point=point)
    assert sample.note == "unsupported: takes no arrays (TypeError)"


def test_rounds_are_interleaved_and_belong_to_their_subject() -> None:
    seen: list[str] = []

    def spy(name: str) -> Subject:
        class Spy(standin.Standin):
            def free(self, seq: int) -> None:
                seen.append(name)
                super().free(seq)

        return Subject(name, Spy, 16, make_uncached=None)

    point = Point("admit_prefix", {"tokens": 32, "cached": 0.0, "form": "list"})
    first, second = measured(spy("a"), spy("b"), point=point, budget_s=1e9)
    assert first.rounds == second.rounds == MOST_TIMED
    turns = [(name, len(list(group))) for name, group in groupby(seen[2 * WARM_UP :])]
    assert sum(n for _, n in turns) <= 2 * (MAX_ROUNDS - WARM_UP)
    assert {name for name, _ in turns} == {"a", "b"}
    # Rotated: whoever closes a turn opens the next, so two bursts of it stand together.
    assert [name for name, _ in turns[:3]] in (["a", "b", "a"], ["b", "a", "b"])
    assert "ratio" not in first.counters
    low, ratio, high = (second.counters[k] for k in ("ratio_low", "ratio", "ratio_high"))
    assert low <= ratio <= high


def test_prediction_follows_the_growth_seen() -> None:
    assert predict({}, 100) == 0.0
    assert predict({512: 1.0}, 1024) == 2.0
    assert predict({512: 1.0, 8192: 16.0}, 131_072) == pytest.approx(256.0)
    assert predict({512: 1.0, 8192: 256.0}, 131_072) == pytest.approx(65_536.0)
    assert predict({512: 1.0, 8192: 0.5}, 131_072) == pytest.approx(8.0)


def test_a_size_that_would_take_too_long_is_left_out() -> None:
    samples: list[Sample] = []
    point = Point("admit_prefix", {"tokens": 512, "cached": 0.0, "form": "list"})
    job = Job([full()], [point], 0.001, samples.append)
    job.costs["Standin", "admit_prefix{'cached': 0.0, 'form': 'list'}"] = {64: 10.0}
    job.measure(point, plain_pedantic)
    assert samples[0].note.startswith("unsupported: left out: a round of 64 tokens took 10 s")


# ---------------------------------------------------------------- memory and the short table


@pytest.mark.parametrize(("caching", "tokens"), [(True, 64), (False, 0)])
def test_tokens_kept_are_told_from_metadata(
    monkeypatch: pytest.MonkeyPatch, caching: bool, tokens: int
) -> None:
    monkeypatch.setattr(memory, "CHILDREN", 1)
    recorder = open_subject(find(ADAPTER.replace(":make", ":make_recorder")), 16)
    found = memory.footprint(recorder, 20_000, caching)
    assert found.tokens == pytest.approx(tokens, abs=0.5)
    assert found.metadata > 8  # at least the list of its ids
    assert found.create_ms > 0


def test_split_of_memory() -> None:
    assert memory.split(24 + 16 * 4, 24 + 32 * 4) == (24, 64)
    assert memory.split(123, 123) == (123, 0)


def test_memory_names_what_it_cannot_measure() -> None:
    def note(s: Subject, caching: bool) -> str:
        samples: list[Sample] = []
        measure_memory([s], Point("memory", {"blocks": 100, "caching": caching}), samples.append)
        return samples[0].note

    assert note(subject(), False) == "unsupported: caching cannot be switched off"
    assert note(subject(standin.Uncached), True) == "unsupported: no prefix cache"
    assert note(full(), True) == "unsupported: cannot be opened in another process"
    assert note(subject(spec="nowhere:make"), True).startswith("INVALID: child process: ")


def sample(name: str, cell: str, parameters: dict[str, Any], value: float = 5.0, **more: Any) -> Sample:
    quartiles = dict.fromkeys(("median", "low", "high"), value)
    options: dict[str, Any] = {"rounds": 5, "unit": "ns/block"} | quartiles | more
    return Sample(implementation=name, cell=cell, parameters=parameters, **options)


def test_the_short_table_shows_telling_points_only() -> None:
    at = {"tokens": 131_072, "cached": 1.0, "form": "list"}
    names, rows = brief.rows(
        [
            sample("a", "admit_prefix", at | {"tokens": 512}),
            sample("a", "admit_prefix", at, 1234.5, per_cal=12.34),
            sample("b", "admit_prefix", at, 2469.0, per_cal=24.7, counters={"ratio": 2.0}),
            sample("c", "admit_prefix", at, rounds=0, note="unsupported: left out: a round took 10 s"),
            sample("d", "admit_prefix", at, rounds=0, note="INVALID: cached tokens is 0, expected 16"),
            sample("a", "free", {"tokens": 8192, "caching": False}),
            sample("b", "free", {"tokens": 8192, "caching": False}, rounds=0, note="unsupported: no"),
            sample("a", "replay", {"capacity_tokens": 1 << 18}, counters={"hit_rate": 0.25, "ceiling": 0.5}),
            sample("a", "replay", {"capacity_tokens": "unbounded"}, counters={"hit_rate": 0.5, "ceiling": 1}),
        ]
    )
    assert names == ["a", "b", "c", "d"]
    assert [(r.what, *r.cells) for r in rows] == [
        ("admit 131,072, 100% cached", "1,234 (12.3)", "2,469 (24.7) 2x", "left out", "INVALID"),
        ("free 8,192, cache off", "5", "unsupported", "", ""),
        ("hit rate (ceiling), 256 Ki", "0.2500 (0.5000)", "", "", ""),
        ("hit rate (ceiling), unbounded", "0.5000 (1.0000)", "", "", ""),
        ("replay a request, 256 Ki", "5", "", "", ""),
        ("replay a request, unbounded", "5", "", "", ""),
    ]
    assert {r.unit for r in rows} == {"ns/block", "of tokens"}
    assert brief.rows([sample("a", "fork", {"tokens": 70})]) == (["a"], [])


def test_figures_of_fewer_requests_are_marked_and_not_compared() -> None:
    at, whole = {"capacity_tokens": 1 << 18}, {"requests_run": 150, "hit_rate": 0.25, "ceiling": 0.5}
    _, rows = brief.rows(
        [
            sample("a", "replay", at, counters=whole),
            sample("b", "replay", at, counters=whole | {"ratio": 2.0}),
            sample("c", "replay", at, counters=whole | {"requests_run": 40, "ratio": 3.0}),
        ]
    )
    assert [r.cells[2] for r in rows] == ["0.25, only 40 of 150 requests", "5, only 40 of 150 requests"]
    assert [r.cells[1] for r in rows] == ["0.2500 (0.5000)", "5 2x"]


@pytest.mark.parametrize("quick", [True, False])
def test_every_telling_point_is_in_the_matrix(quick: bool) -> None:
    points = load(spec.find(), None, quick)
    for telling in brief.TELLING:
        cell = telling.cell.removesuffix("_growth")
        assert any(p.cell == cell and telling.at.items() <= p.parameters.items() for p in points), telling


# ---------------------------------------------------------------- a whole run


def plan(*subjects: Subject, points: list[Point], capacity: tuple[int, ...] = (131_072, 0)) -> Plan:
    return Plan(subjects, points, synthetic(0, 40), capacity, True, 0)


def test_a_run_writes_samples_summary_and_table(tmp_path: Path) -> None:
    points = [
        Point("admit_prefix", SMALL["admit_prefix"]),
        Point("fork", SMALL["fork"]),
        Point("pool", {"blocks": 256}),
        Point("pool", {"blocks": 512}),
        Point("memory", {"blocks": 1000, "caching": True}),
        Point("replay", {"requests": 30}),
        Point("waste", {"steps": 500}),
    ]
    said = io.StringIO()
    console = Console(file=said, width=200)
    status = measure(plan(full(), subject(standin.Uncached), points=points), tmp_path, console, False)
    (folder,) = tmp_path.iterdir()
    found = read(folder / "bench.jsonl")
    assert status == found.footer.exit_status == 0
    assert found.header.implementation == "Standin, Uncached"
    assert found.footer.complete
    by_cell = {(s.cell, s.implementation): s for s in found.samples}
    assert by_cell["fork", "Standin"].note.startswith("unsupported")
    assert by_cell["memory", "Standin"].note.startswith("unsupported: cannot be opened")
    assert by_cell["pool_growth", "Standin"].unit == "exponent"
    replayed = [s for s in found.samples if (s.cell, s.implementation) == ("replay", "Standin")]
    assert [s.parameters["capacity_tokens"] for s in replayed] == [131_072, "unbounded"]
    for s in replayed:
        assert s.counters["hits"] == s.counters["exact_hits"] > 0
        assert s.counters["hit_rate"] <= s.counters["ceiling"]
    assert by_cell["waste", "Standin"].median == by_cell["waste", "Standin"].counters["least_percent"]
    summary = (folder / "bench.md").read_text()
    assert "## replay" in summary
    assert "Hit rate = " in summary
    assert summary.index("## Summary") < summary.index("## admit_prefix")
    assert len((folder / "bench.csv").read_text().splitlines()) == len(found.samples) + 1
    assert said.getvalue().splitlines()[-1] == f"report: {folder / 'bench.md'}"
    assert gc.isenabled()


def test_findings_make_the_status_1(tmp_path: Path) -> None:
    said = io.StringIO()
    points = [Point("evict", SMALL["evict"]), Point("replay", {"requests": 40})]
    console = Console(file=said, width=300)
    status = measure(
        plan(full(), subject(standin.Boaster), subject(standin.Fifo), points=points), tmp_path, console, True
    )
    assert status == 1
    assert "Boaster, evict(blocks=256, prompt_blocks=16): INVALID: cached tokens is" in said.getvalue()
    assert "only 0 of them were ever committed" in said.getvalue()
    assert "Standin" not in said.getvalue()
    (folder,) = tmp_path.iterdir()
    assert "## Findings" in (folder / "bench.md").read_text()


def test_a_run_without_a_number_is_not_green(tmp_path: Path) -> None:
    points = [Point("fork", SMALL["fork"])]
    assert measure(plan(full(), points=points), tmp_path, Console(file=io.StringIO()), True) == 3


class Interrupted(standin.Standin):
    def fork(self, parent: int, child: int) -> None:
        raise KeyboardInterrupt

    capabilities = standin.Standin.capabilities | {"fork"}


def test_a_run_broken_off_says_so(tmp_path: Path) -> None:
    points = [Point("evict", SMALL["evict"]), Point("fork", SMALL["fork"]), Point("pool", SMALL["pool"])]
    assert measure(plan(full(Interrupted), points=points), tmp_path, Console(file=io.StringIO()), True) == 3
    (folder,) = tmp_path.iterdir()
    found = read(folder / "bench.jsonl")
    assert not found.footer.complete
    assert [s.cell for s in found.samples] == ["evict"]
    assert gc.isenabled()


def test_a_failure_of_the_harness_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Job, point: Point, pedantic: object) -> None:
        raise ZeroDivisionError("the harness broke")

    monkeypatch.setattr(Job, "measure", broken)
    said = io.StringIO()
    points = [Point("evict", SMALL["evict"])]
    assert measure(plan(full(), points=points), tmp_path, Console(file=said, width=300), True) == 1
    assert "the harness broke" in said.getvalue() or "ZeroDivisionError" in said.getvalue()


def test_the_same_one_twice_gets_two_names(tmp_path: Path) -> None:
    assert run([ADAPTER, ADAPTER], None, [], 64, ["free"], True, 0, tmp_path, True) == 0
    (folder,) = tmp_path.iterdir()
    names = read(folder / "bench.jsonl").header.implementation.split(", ")
    assert names[1] == names[0] + " #2"


def test_a_slow_set_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "LONGEST_SET_UP_S", 0)
    (sample,) = measured(full(), point=Point("evict", SMALL["evict"]))
    assert sample.note.startswith("unsupported: left out: the sequences it starts with")


def test_run_opens_an_adapter_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = run([ADAPTER], None, [1_048_576], 64, ["replay"], True, 0, tmp_path, True)
    assert status == 0
    (folder,) = tmp_path.iterdir()
    (sample,) = read(folder / "bench.jsonl").samples
    assert sample.counters["evictions"] == sample.counters["exact_evictions"] > 0
    assert capsys.readouterr().out.strip().replace("\n", "") == f"report: {folder / 'bench.md'}"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"impls": ["nobody"]}, "no implementation 'nobody'"),
        ({"block_size": 24}, "divisors of 512"),
        ({"block_size": 0}, "at least 1"),
        ({"capacity": [8]}, "at least one block of 16"),
        ({"capacity": [-1]}, "at least one block of 16"),
        ({"cells": ["walk"]}, "allowed are decode_step"),
        ({"trace": Path("no-such-file")}, "no-such-file"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], named: str
) -> None:
    arguments: dict[str, Any] = {
        "impls": [ADAPTER],
        "trace": None,
        "capacity": [],
        "block_size": 16,
        "cells": None,
        "quick": True,
        "seed": 0,
        "out": tmp_path,
        "quiet": True,
    }
    assert run(**(arguments | changes)) == 2
    assert named in capsys.readouterr().out.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_wrong_and_unsupported_are_told_apart() -> None:
    with pytest.raises(Unsupported):
        subject().open(8, caching=False)
    with pytest.raises(Wrong):
        expect("x", 3, 1, 1)

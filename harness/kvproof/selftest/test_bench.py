"""The benchmark's machinery on a stand-in: matrix, cells and their checks, memory, the short table."""

from __future__ import annotations

import gc
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from kvproof import spec
from kvproof.bench import brief, cells, memory
from kvproof.bench.apart import measure_memory
from kvproof.bench.clock import calibrate, quiet
from kvproof.bench.matrix import APART, ATTENTION, RANKS, BadMatrix, Point, load
from kvproof.bench.measure import MOST_TIMED, SET_UPS, Job, predict
from kvproof.bench.subject import Subject, open_subject
from kvproof.bench.warm import warm
from kvproof.bench.work import MAX_ROUNDS
from kvproof.records import Sample
from kvproof.selftest import bench_standin as standin
from kvproof.selftest.bench_calls import ADAPTER, SMALL, full, measured, plain_pedantic, subject
from kvproof.subjects import find

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
    assert sample.rounds >= 3
    assert sample.median > 0
    assert sample.low <= sample.median <= sample.high
    assert sample.per_cal == pytest.approx(sample.median / (sample.cal or 0))


def test_cells_name_what_is_not_supported() -> None:
    def note(s: Subject, cell: str) -> str:
        (sample,) = measured(s, point=Point(cell, SMALL[cell]))
        assert (sample.rounds, sample.median) == (0, 0.0)
        return sample.note

    assert note(full(), "fork") == "unsupported: no capability fork"
    assert note(subject(), "free") == "unsupported: caching cannot be switched off: no factory make_uncached"
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
    for s in (first, second):
        assert s.rounds + s.counters["left_out"] == MOST_TIMED * SET_UPS
    warmed = int(first.counters["warm_up"] + second.counters["warm_up"])
    turns = [(name, len(list(group))) for name, group in groupby(seen[warmed:])]
    assert sum(n for _, n in turns) <= 2 * MAX_ROUNDS * SET_UPS - warmed
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
    assert samples[0].note.endswith("more than 20 s; --patience 28 times them")
    job.patience = 28
    job.measure(point, plain_pedantic)
    assert samples[1].rounds


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

    assert note(subject(), False) == "unsupported: caching cannot be switched off: no factory make_uncached"
    assert note(subject(standin.Uncached), True) == "unsupported: no prefix cache"
    assert note(full(), True) == "unsupported: cannot be opened in another process"
    assert note(subject(spec="nowhere:make"), True).startswith("INVALID: child process: ")


def sample(name: str, cell: str, parameters: dict[str, Any], value: float = 5.0, **more: Any) -> Sample:
    quartiles = dict.fromkeys(("median", "low", "high"), value)
    options: dict[str, Any] = {"rounds": 5, "unit": "ns/block"} | quartiles | more
    return Sample(implementation=name, cell=cell, parameters=parameters, **options)


def test_the_short_table_shows_telling_points_only() -> None:
    at = {"tokens": 8192, "cached": 1.0, "form": "list"}
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
        ("admit 8,192, 100% cached", "1,234 (12.3)", "2,469 (24.7) 2x", "left out", "INVALID"),
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


# ---------------------------------------------------------------- warm-up, and cells that are set up again


@pytest.mark.parametrize(
    ("calls", "rounds"),
    [
        ([1.0, 1.0, 1.0, 1.0], 3),  # the first cannot gain, and two more without gain end it
        ([9.0, 5.0, 3.0, 3.0, 3.0, 3.0], 5),
        ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0], 6),
        ([2.0, 9.0, 9.0, 1.0], 3),  # a busy machine prolongs nothing
        ([1.0, 0.98, 0.97, 0.96], 3),  # 5 % is no gain
    ],
)
def test_a_subject_is_warm_when_two_rounds_gain_nothing(calls: list[float], rounds: int) -> None:
    left = iter(calls)
    ran, fastest = warm(lambda: (call := next(left), call + 1), 1e9)
    assert (ran, fastest) == (rounds, min(calls[:rounds]) + 1)


def test_a_warm_up_takes_no_longer_than_the_rounds() -> None:
    assert warm(lambda: (1.0, 1.0), 0.5)[0] == 2


def test_a_cell_of_short_rounds_is_set_up_again_and_checked_again() -> None:
    made: list[int] = []

    class Counted(standin.Standin):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            made.append(num_blocks)
            super().__init__(num_blocks, block_size)

    (sample,) = measured(Subject("counted", Counted, 16), point=Point("pool", {"blocks": 256}), budget_s=1e9)
    assert sample.note == ""
    assert len(made) > SET_UPS, "a pool lasts for one set-up"
    assert sample.rounds + sample.counters["left_out"] == MOST_TIMED * SET_UPS

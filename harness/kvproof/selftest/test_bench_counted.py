"""Exact counters beside the times, inputs that never come twice, and outputs that are checked at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvproof import environment
from kvproof.bench import prompts, rounds
from kvproof.bench.cells import BASES, CELLS
from kvproof.bench.counted import exact
from kvproof.bench.kept import Kept
from kvproof.bench.matrix import Point
from kvproof.bench.measure import Lane
from kvproof.bench.subject import Subject, open_subject
from kvproof.bench.tables import markdown
from kvproof.bench.warm import LEAST_WARM
from kvproof.cli import main
from kvproof.records import Footer, Header, Sample
from kvproof.report.compare import EXACT
from kvproof.report.results import ResultWriter
from kvproof.selftest import bench_standin as standin
from kvproof.selftest.bench_calls import SMALL, full, measured, subject
from kvproof.subjects import find

ALL: dict[str, dict[str, Any]] = {
    **SMALL,
    "admit_cold": {"tokens": 70, "form": "list"},
    "scheduler_step": {"sequences": 6},
}


def plain() -> Subject:
    """It has a manager, a scheduler, and no batched steps."""
    return open_subject(find("plain"), 16)


# ---------------------------------------------------------------- counters


@pytest.mark.parametrize(
    ("cell", "counters"),
    [
        # Of five sequences of 100 to 104 tokens each one grows by a block in 16 steps.
        ("decode_step", {"blocks": 5, "changed_entries": 5}),
        ("admit_cold", {"blocks": 5, "changed_entries": 5, "hits": 0}),
        # 64 tokens: three blocks are found, the one that holds the last token never is.
        ("admit_prefix", {"blocks": 4, "changed_entries": 4, "hits": 3}),
        ("free", {"freed": 4 * 5}),
        # 4 * 16 - 32 + 1 tokens are three blocks, the third of them new.
        ("batch", {"blocks": 3, "entries": 3 * 3}),
        ("pool", {"blocks": 2 * 16, "changed_entries": 2 * 16, "hits": 0}),
        ("evict", {"blocks": 1024, "changed_entries": 1024, "hits": 0, "evictions": 1024}),
    ],
)
def test_a_cell_counts_one_round_exactly(cell: str, counters: dict[str, float]) -> None:
    (sample,) = measured(full(), point=Point(cell, SMALL[cell]))
    assert exact(sample.counters) == counters
    assert set(counters) <= set(EXACT), "a gate compares them"


def test_what_has_more_to_report_is_counted_too() -> None:
    forked, stepped = (measured(plain(), point=Point(c, ALL[c]))[0] for c in ("fork", "scheduler_step"))
    # 70 tokens: 16 children share five blocks each, the partial one too.
    assert exact(forked.counters) == {"blocks": 0, "changed_entries": 80, "copies": 0}
    assert exact(stepped.counters) == {"blocks": 6, "computed_tokens": 6 * 16, "preemptions": 0}


@pytest.mark.parametrize("cell", ["decode_step", "pool"])
def test_counters_do_not_depend_on_the_number_of_rounds(cell: str) -> None:
    few, many = (measured(full(), point=Point(cell, SMALL[cell]), budget_s=b)[0] for b in (0.0, 1e9))
    assert few.rounds + few.counters["left_out"] < many.rounds
    assert exact(few.counters) == exact(many.counters)


class OneMore(standin.Standin):
    """Takes a block more for each admission, and says so: no result is wrong."""

    lookahead = 1

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        n = super().add(seq, tokens)
        self.tables[seq].append(self._take())
        return n


def header() -> Header:
    here = environment.describe()
    return Header(what="bench", implementation="mine", seed=0, started="", command="", environment=here)


def written(path: Path, samples: Sequence[Sample]) -> Path:
    with ResultWriter(path, header()) as file:
        for s in samples:
            file.write(s.model_copy(update={"implementation": "mine"}))
        file.close(Footer(complete=True, cases=len(samples), must_run=0, failed=0, exit_status=0, seconds=1))
    return path


def test_a_gate_names_a_block_more_for_each_admission_and_tells_no_time(tmp_path: Path) -> None:
    points = [Point(cell, SMALL[cell]) for cell in ("admit_prefix", "pool")]
    before, after = (
        written(tmp_path / f"{s.name}.jsonl", [x for p in points for x in measured(s, point=p)])
        for s in (subject(), subject(OneMore))
    )
    done = CliRunner().invoke(main, ["compare", "--gate", str(before), str(after)])
    assert done.exit_code == 1, done.output
    told = [line for line in done.output.splitlines() if line.startswith(("changed", "slower", "faster"))]
    assert [line.split(": ")[-1] for line in told] == [
        "blocks 4 -> 5",
        "changed_entries 4 -> 5",
        "blocks 32 -> 34",
        "changed_entries 32 -> 34",
    ]
    assert all(line.startswith("changed mine ") for line in told)
    assert CliRunner().invoke(main, ["compare", "--gate", str(before), str(before)]).exit_code == 0


def test_a_file_without_counters_has_not_changed(tmp_path: Path) -> None:
    (sample,) = measured(full(), point=Point("pool", SMALL["pool"]))
    older = sample.model_copy(update={"counters": {"round_us": 1.0, "warm_up": 3.0, "left_out": 0.0}})
    old, new = written(tmp_path / "old.jsonl", [older]), written(tmp_path / "new.jsonl", [sample])
    for pair in ((old, new), (new, old)):
        done = CliRunner().invoke(main, ["compare", "--gate", *map(str, pair)])
        assert (done.exit_code, "\nchanged" in f"\n{done.output}") == (0, False), done.output


def test_processes_that_count_differently_are_invalid() -> None:
    """Also if the one that differs would be left out for its time."""
    point = Point("pool", SMALL["pool"])
    (one,), (more,) = (measured(s, point=point) for s in (subject(), subject(OneMore)))
    slow = more.model_copy(update={"cal": 9 * (more.cal or 1.0)})
    lanes = [
        rounds.Lane(subject(), [[one, one, slow]], [[[1e-6]] * 3]),
        rounds.Lane(subject(), [[one]], [[[1e-6]]]),
    ]
    (found,) = rounds._point(lanes, 0, point, 2)
    assert found.rounds == 0
    assert found.note == (
        "INVALID: blocks 32 and 34, changed_entries 32 and 34: of the same input, in two processes"
    )
    lanes = [rounds.Lane(subject(), [[one, one]], [[[1e-6]] * 2]) for _ in range(2)]
    (found,) = rounds._point(lanes, 0, point, 2)
    assert exact(found.counters) == {"blocks": 32, "changed_entries": 32, "hits": 0}


def test_set_ups_that_count_differently_are_invalid() -> None:
    made: list[int] = []

    def unsteady(num_blocks: int, block_size: int) -> standin.Standin:
        made.append(num_blocks)
        found = (OneMore if len(made) > 4 else standin.Standin)(num_blocks, block_size)
        found.lookahead = 1  # type: ignore[attr-defined]
        return found

    steady = subject(unsteady)
    assert not steady.exact, "who takes ahead may take more now and then"
    steady.exact = True
    (sample,) = measured(steady, point=Point("pool", SMALL["pool"]), budget_s=1e9)
    assert sample.note == (
        "INVALID: blocks 32 and 34, changed_entries 32 and 34: of the same input, in two set-ups"
    )


def test_the_summary_has_a_column_for_each_count() -> None:
    points = [Point(c, SMALL[c]) for c in ("pool", "evict")]
    samples = [s for p in points for s in measured(full(), point=p)]
    text = markdown(header(), samples, [])
    evicted = text[text.index("## evict") :]
    assert [c in evicted for c in ("evictions", "changed entries", "| 1,024")] == [True] * 3
    assert "evictions" not in text[text.index("## pool") : text.index("## evict")]


# ---------------------------------------------------------------- inputs


class Spied:
    """A subject that notes what it is told while `told` is a list of calls."""

    def __init__(self, inner: Any, told: list[Any]) -> None:
        self.inner, self.told = inner, told

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if not callable(member):
            return member

        def call(*arguments: Any) -> Any:
            self.told.append((name, *map(str, arguments)))
            return member(*arguments)

        return call


def spied(told: list[Any]) -> Subject:
    s = plain()
    for factory in ("make", "make_uncached", "make_scheduler"):
        made = getattr(s, factory)
        setattr(s, factory, lambda *sizes, made=made: Spied(made(*sizes), told))
    return s


@pytest.mark.parametrize("cell", CELLS)
def test_no_input_comes_twice(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any round of any set-up but the first round, which is the same in every run and is not timed."""
    # Batches are shifted by 4,096 places: of fifteen unknown ones two are alike in a run of forty.
    seeds = count(2)
    monkeypatch.setattr(prompts, "unknown", lambda: np.random.default_rng(next(seeds)))
    told: list[Any] = []
    lane, inputs, tokens = Lane(spied(told)), list[Any](), list[Any]()
    for _ in range(3):
        lane.open(Point(cell, ALL[cell]))
        for n in range(6):
            told.clear()
            result = lane.once()
            if n:
                inputs.append(tuple(told))
                tokens.append(tuple(c[-1] for c in told if c[0] in ("add", "append", "feed")))
            lane.finish(result)
    lane.leave()
    # Every set-up has the same ids; where a call says nothing else, so are the rounds of the same place.
    places = len(inputs) // 3 if cell in ("free", "fork") else len(inputs)
    assert len(set(inputs)) == places
    assert len(set(tokens)) == (1 if cell in ("free", "fork") else len(tokens))


def test_the_first_round_is_the_same_in_every_run() -> None:
    def first(cell: str) -> list[Any]:
        told: list[Any] = []
        lane = Lane(spied(told))
        lane.open(Point(cell, ALL[cell]))
        if cell not in ("pool", "evict"):  # these have come to their first round by themselves
            if cell == "admit_prefix":  # what timed rounds find in the cache is new each time
                told.clear()
            lane.once()
        return told

    for cell in ALL:
        assert first(cell) == first(cell), cell


def test_a_subject_that_remembers_its_inputs_never_meets_one_again() -> None:
    """It keeps the answer to each prompt, for all managers it makes; a set-up, not a round, comes again.

    The cached part of a prompt comes again, but not twice in a row.
    """
    answers: dict[tuple[int, ...], int] = {}
    known: list[bool] = []
    begun: list[tuple[int, ...]] = []

    class Remembers(standin.Standin):
        def add(self, seq: int, tokens: Sequence[int]) -> int:
            known.append(tuple(tokens) in answers)
            begun.append(tuple(tokens[:48]))
            return answers.setdefault(tuple(tokens), super().add(seq, tokens))

    lane = Lane(subject(Remembers))
    for _ in range(3):
        lane.open(Point("admit_prefix", SMALL["admit_prefix"]))
        lane.step()
        known.clear()
        begun.clear()
        for _ in range(10):
            lane.step()
        assert known == [False] * 10
        assert all(a != b for a, b in pairwise(begun))
        lane.leave()
    assert known == [False] * 10 + [True, False], "the last prompt of a set-up is asked for once more"


# ---------------------------------------------------------------- outputs


def test_any_round_may_be_the_one_that_is_kept() -> None:
    found: Counter[int] = Counter()
    for _ in range(400):
        kept = Kept[int]()
        for n in range(LEAST_WARM + 4):
            kept.offer(lambda n=n: n)  # type: ignore[misc]
        assert kept.answer is not None
        found[kept.answer] += 1
    assert set(found) == {LEAST_WARM + n for n in range(4)}
    assert min(found.values()) > 50


class Shares(standin.Standin):
    """Takes the blocks that it should, and gives the first one of sequence 0 to everybody."""

    def table(self, seq: int) -> list[int]:
        return [self.tables[0][0], *super().table(seq)[1:]]


class Forgets(standin.Standin):
    """Publishes the prompts that others begin with, and nothing that comes later."""

    def commit(self, seq: int, computed: int) -> None:
        if seq < BASES:
            super().commit(seq, computed)


class TakesAnother(standin.Standin):
    """Says what it finds, and gives blocks of somebody else's contents."""

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        n = super().add(seq, tokens)
        if n:
            self.tables[seq][: n // self.size] = reversed(self.tables[seq][: n // self.size])
        return n


class RightAtTheEdges(standin.Standin):
    """The slots of the first, the middle and the last row of a batch are right."""

    def append_batch(self, seqs: Any, tokens: Any) -> list[int]:
        slots, n = super().append_batch(seqs, tokens), len(seqs)
        return [slot + (i not in (0, n // 2, n - 1)) for i, slot in enumerate(slots)]


@pytest.mark.parametrize(
    ("manager", "cell", "named"),
    [
        (Shares, "decode_step", "places of the tables, and nobody shares it"),
        (Shares, "pool", "places of the tables, and nobody shares it"),
        (Forgets, "admit_prefix", "cached tokens of a prompt that came before is"),
        (TakesAnother, "admit_prefix", "what it found in the cache is not in the blocks"),
        (RightAtTheEdges, "batch", "the slot of the new token is"),
    ],
)
def test_what_no_round_shows_is_found_at_the_end(
    manager: Callable[[int, int], Any], cell: str, named: str
) -> None:
    larger: dict[str, Any] = {"batch": {"sequences": 9}, "admit_prefix": {"tokens": 200, "cached": 0.5}}
    parameters = SMALL[cell] | larger.get(cell, {})
    (sample,) = measured(subject(manager, make_uncached=manager), point=Point(cell, parameters))
    assert sample.note.startswith("INVALID: ")
    assert named in sample.note


class Unpublished(standin.Standin):
    """Publishes what fills the pool, and nothing that comes later: its commits cost nothing."""

    commits = 0

    def commit(self, seq: int, computed: int) -> None:
        self.commits += 1
        if self.commits <= 2:
            super().commit(seq, computed)


def test_a_cache_that_takes_nothing_in_is_found_at_the_end() -> None:
    (sample,) = measured(subject(Unpublished), point=Point("evict", SMALL["evict"]))
    assert sample.note == "INVALID: cached tokens of a prompt that came before is 0, expected 240"


class Mixes:
    """A scheduler that gives everybody the blocks of the first row."""

    def __init__(self, *sizes: int) -> None:
        made = plain().make_scheduler
        assert made is not None
        self.inner = made(*sizes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def plan(self) -> list[Any]:
        rows = self.inner.plan()
        return [(rid, low, high, [*rows[0][3], *table][: len(table)]) for rid, low, high, table in rows]


def test_tables_of_a_scheduler_are_checked_at_the_end() -> None:
    mixed = Subject("mixes", None, 16, make_scheduler=Mixes)
    (sample,) = measured(mixed, point=Point("scheduler_step", ALL["scheduler_step"]))
    assert "places of the tables, and nobody shares it" in sample.note


def test_a_block_ahead_of_need_fits_into_every_cell() -> None:
    """Also while every block of the pool is used once before the first round."""
    (sample,) = measured(
        subject(OneMore), point=Point("admit_prefix", {"tokens": 8192, "cached": 0.0, "form": "list"})
    )
    assert sample.note == ""
    assert sample.counters["blocks"] == 513

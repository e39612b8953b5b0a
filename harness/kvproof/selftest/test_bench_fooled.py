"""What would fool the benchmark: work put off, keys of a few tokens, rounds that stood still, a slow loop."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof.bench import calm, measure, rounds
from kvproof.bench.matrix import Point
from kvproof.bench.measure import Lane
from kvproof.bench.subject import Subject, open_subject
from kvproof.records import Sample
from kvproof.selftest import bench_standin as standin
from kvproof.selftest.bench_calls import SMALL, full, measured, subject
from kvproof.subjects import find

PUT_OFF = ("add", "append", "commit", "free", "fork")
CELLS: dict[str, dict[str, Any]] = {
    **SMALL,
    "decode_step": {**SMALL["decode_step"], "caching": False},
    "admit_cold": {"tokens": 70, "form": "list"},
}


class PutsOff:
    """Notes what it is told, and does it as soon as somebody asks for anything."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.due = inner, list[Callable[[], Any]]()
        self.capabilities = inner.capabilities & {"prefix", "fork", "batch", "slots"}

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if not callable(member):
            return member

        def call(*arguments: Any) -> Any:
            if name in PUT_OFF and (name, "prefix" in self.capabilities) != ("add", True):
                self.due.append(lambda: member(*arguments))
                return 0
            due, self.due = self.due, []
            for work in due:
                work()
            return member(*arguments)

        return call


@pytest.mark.parametrize("cell", CELLS)
def test_a_round_ends_when_nothing_is_left_to_do(cell: str) -> None:
    s, made = open_subject(find("plain"), 16), list[PutsOff]()

    def late(factory: Any) -> Any:
        def make(*sizes: int) -> PutsOff:
            made.append(PutsOff(factory(*sizes)))
            return made[-1]

        return make

    lane = Lane(Subject("late", late(s.make), 16, make_uncached=late(s.make_uncached)))
    lane.open(Point(cell, CELLS[cell]))
    for _ in range(4):
        result = lane.once()
        assert not made[-1].due
        lane.finish(result)
    lane.leave()


class Unread(Sequence[int]):
    """A table, or slots, whose numbers are found when they are read."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self.find = find
        self.found: list[int] | None = None

    def _read(self) -> list[int]:
        self.found = self.found if self.found is not None else [int(n) for n in self.find()]
        return self.found

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, at: Any) -> Any:
        return self._read()[at]


class AnswersLater:
    """Gives such tables and slots; what they hold is what held when they were asked for."""

    def __init__(self, inner: Any, given: list[Unread]) -> None:
        self.inner, self.given = inner, given

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if name not in ("table", "append_batch", "slots"):
            return member

        def call(*arguments: Any) -> Unread:
            answer = member(*arguments)
            self.given.append(Unread(lambda: answer))
            return self.given[-1]

        return call


@pytest.mark.parametrize("name", ["plain", "reference"])
@pytest.mark.parametrize("cell", CELLS)
def test_what_is_found_when_it_is_read_is_read_in_the_round(cell: str, name: str) -> None:
    s, given = open_subject(find(name), 16), list[Unread]()

    def later(factory: Any) -> Any:
        return lambda *sizes: AnswersLater(factory(*sizes), given)

    lane = Lane(Subject("later", later(s.make), 16, make_uncached=later(s.make_uncached)))
    lane.open(Point(cell, CELLS[cell]))
    for _ in range(3):
        given.clear()
        result = lane.once()
        assert all(answer.found is not None for answer in given)
        assert given or cell == "free"
        lane.finish(result)
    lane.leave()


# ---------------------------------------------------------------- keys of a few tokens


class KnowsByOne(standin.Standin):
    """Knows a block by the first of its tokens."""

    def _chunk(self, seq: int, i: int) -> tuple[int, tuple[int, ...]]:
        before, tokens = super()._chunk(seq, i)
        return before, tokens[:1]


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        ("admit_prefix", "blocks shared with who differs in token"),
        ("evict", "cached tokens"),
    ],
)
def test_a_key_that_leaves_tokens_out_is_found(
    cell: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By prompts that differ in one token; which one nobody can foresee, here it is the middle one."""
    monkeypatch.setattr(secrets, "randbelow", lambda n: n // 2)
    good, bad = measured(full(), subject(KnowsByOne), point=Point(cell, SMALL[cell]))
    assert good.note == ""
    assert bad.note.startswith("INVALID: ")
    assert named in bad.note


def test_a_prompt_that_is_not_cached_differs_from_one_before_by_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(secrets, "randbelow", lambda n: n // 2)
    point = Point("admit_prefix", {"tokens": 64, "cached": 0.0, "form": "list"})
    good, bad = measured(full(), subject(KnowsByOne), point=point)
    assert good.note == ""
    assert bad.note.startswith("INVALID: cached tokens")


# ---------------------------------------------------------------- rounds that stood still, and the loop


def test_a_sample_says_how_long_its_rounds_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    point = Point("pool", SMALL["pool"])
    monkeypatch.setattr(measure, "interrupted", lambda: next(clock))
    monkeypatch.setattr(measure, "waited", lambda: next(clock) * 1e-6)
    (sample,) = measured(full(), point=point)  # its n-th round takes n us
    assert sample.counters["left_out"] == 0, "each was broken into"
    assert 0 < sample.counters["waited"] <= 1
    monkeypatch.setattr(measure, "waited", lambda: 0.0)
    (sample,) = measured(full(), point=point)
    assert sample.counters["waited"] == 0


def sample(cal: float = 100.0, **counters: float) -> Sample:
    times = dict.fromkeys(("median", "low", "high"), 5.0)
    return Sample(
        implementation="x",
        cell="pool",
        parameters={},
        unit="ns",
        rounds=5,
        cal=cal,
        counters=counters,
        **times,  # type: ignore[arg-type]
    )


def test_a_process_whose_rounds_stood_still_is_disturbed() -> None:
    """Its loop, which is short, may have been left alone."""
    assert calm.load(100, 0.4) > calm.DISTURBED * 100 > calm.load(100, 0.05)
    lane = rounds.Lane(full(), [[sample(waited=w) for w in (0.0, 0.4, 0.0)]], [[[1.0]] * 3], 100.0)
    assert lane.wanting(0, 3)
    assert not lane.wanting(0, 2)
    assert lane.choose(0, 2) == 1
    assert [s.counters["waited"] for s in lane.samples[0]] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("loops", "valid"), [((1.4, 1.3, 1.21), False), ((1.4, 1.02, 1.5), True), ((), True)]
)
def test_who_slows_the_loop_in_every_process_has_no_time(loops: Sequence[float], valid: bool) -> None:
    samples = [sample(loop=x) for x in loops] or [sample()]
    lanes = [rounds.Lane(full(), [list(samples)], [[[1e-6]] * len(samples)]) for _ in range(2)]
    (found,) = rounds._point(lanes, 0, Point("pool", {}), len(samples))
    assert (found.rounds > 0) == valid
    assert ("the calibration loop takes 1.21x and more" in found.note) != valid


def test_the_loop_is_timed_before_the_implementation_is_opened(tmp_path: Path) -> None:
    slowing = tmp_path / "slowing.py"
    slowing.write_text(
        "from kvproof.bench import measure\n"
        "from kvproof.selftest.bench_standin import make_uncached as make\n"
        "loop = measure.calibrate\nmeasure.calibrate = lambda *count: 9 * loop(*count)\n"
    )
    samples: list[Sample] = []
    point = Point("admit_cold", {"tokens": 64, "form": "list"})
    opened = Subject("slowing", standin.Uncached, 16, spec=f"{slowing}:make")
    assert rounds.measure([opened], [point], rounds.Shape(1, 0.01), samples.append, lambda _: None) == []
    assert samples[0].note.startswith("INVALID: in each of its processes the calibration loop takes ")


# ---------------------------------------------------------------- right managers that are unusual


class SomeAhead(standin.Standin):
    """Takes one block ahead, or two, or none."""

    lookahead = 2

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        n = super().add(seq, tokens)
        self.tables[seq] += [self._take() for _ in range(random.randrange(3))]
        return n


class Lags(standin.Standin):
    """A table grows at the commit."""

    capabilities = frozenset({"batch", "slots"})
    lazy = True

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        self.tokens[seq] += tokens

    def commit(self, seq: int, computed: int) -> None:
        while len(self.tables[seq]) * self.size < computed:
            self.tables[seq].append(self._take())


@pytest.mark.parametrize(("manager", "cell"), [(SomeAhead, "pool"), (SomeAhead, "free"), (Lags, "batch")])
def test_a_right_manager_is_not_called_wrong(manager: Callable[[int, int], Any], cell: str) -> None:
    (found,) = measured(subject(manager, make_uncached=manager), point=Point(cell, SMALL[cell]))
    assert found.note == ""
    assert found.rounds >= 3

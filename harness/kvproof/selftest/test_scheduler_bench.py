"""A trace served by schedulers: exact counts on a tiny one, and what makes a run invalid."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvproof import spec
from kvproof.bench.cells import CELLS
from kvproof.bench.holdings import Holdings
from kvproof.bench.lru import Endless, block_keys, count
from kvproof.bench.matrix import Point, load
from kvproof.bench.measure import Job
from kvproof.bench.plan import Plan
from kvproof.bench.run import measure
from kvproof.bench.served import POINTS, Cost, Series, Served
from kvproof.bench.serving import serve
from kvproof.bench.subject import Subject, Unsupported, Wrong, open_subject
from kvproof.bench.traces import Request, Trace, prompt_tokens, synthetic
from kvproof.records import Sample
from kvproof.report.results import read
from kvproof.selftest import bench_standin as standin
from kvproof.selftest.wrong_schedulers import (
    Boasts,
    Dies,
    EndsEarly,
    EndsLate,
    Garbles,
    Hides,
    Idles,
    Lends,
    Loses,
    Merges,
    MergesTails,
    Mixes,
    Overshoots,
    Repeats,
    Wrapped,
)
from kvproof.subjects import find
from kvproof_impls.reference.adapter import make_scheduler

TICK = Cost(step=1.0, prefill=0.0, decode=0.0, context=0.0)
"""Every step takes a millisecond."""


def request(arrival_s: float, prompt: int, output: int, *ids: int) -> Request:
    return Request(arrival_s, prompt, output, np.array(ids, dtype=np.int32))


TINY = Trace("tiny", (request(5.0, 512, 3, 0), request(6.0, 1024, 2, 0, 1), request(6.0, 40, 0, 2)))
"""The second one finds the first one's 32 blocks; the third asks for no output and gets one token."""


def small(n: int, seed: int = 3) -> Trace:
    """A synthetic trace a thousand times as fast, prompts cut to 1,500 tokens and outputs of 80 to 139."""
    requests = []
    for r in synthetic(seed, n).requests:
        prompt, output = min(r.prompt_tokens, 1500), 80 + r.output_tokens % 60
        requests.append(request(r.arrival_s / 1000, prompt, output, *np.asarray(r.block_ids)[:3]))
    return Trace("small", tuple(requests))


def subject(scheduler: Callable[..., Any] = make_scheduler, block_size: int = 16) -> Subject:
    return Subject(getattr(scheduler, "__name__", "?"), None, block_size, make_scheduler=scheduler)


def served(s: Subject, trace: Trace = TINY, blocks: int = 200, tokens: int = 4096, **more: Any) -> Served:
    return serve(s, trace, blocks, TICK, max_seqs=8, max_tokens=tokens, **more)


# ---------------------------------------------------------------- exact counts


@pytest.mark.parametrize("name", ["reference", "plain"])
def test_a_tiny_trace_gives_exact_figures(name: str) -> None:
    found = served(open_subject(find(name), 16))
    assert found.invalid == ""
    assert (found.finished, found.refused, found.stopped) == (3, 0, False)
    assert len(found.nanoseconds) == 3 + 2
    assert found.virtual_s == pytest.approx(1.002)
    # 512 + 2, then 512 + 1 behind the hit, and 40.
    assert (found.computed_tokens, found.recomputed_tokens) == (1067, 0)
    assert (found.asked_tokens, found.hit_tokens, found.ceiling_tokens) == (1576, 512, 512)
    assert found.first_s == pytest.approx([0.001] * 3)
    assert found.between_s == pytest.approx([0.001] * 2)
    # Full blocks, one token in a 33rd block, all gone, full blocks again, all gone.
    assert list(found.waste) == pytest.approx([0.0, 15 / 528, 0.0])
    assert found.most_running == 2
    counters = found.counters()
    assert counters["hit_rate"] == counters["ceiling"] == pytest.approx(512 / 1576)
    assert counters["waste_max"] == pytest.approx(15 / 528)
    assert [p[0] for p in found.series.points] == pytest.approx([5.001, 5.002, 5.003, 6.001, 6.002])


def test_blocks_taken_before_their_chunk_are_waste() -> None:
    found = served(subject(), tokens=128)
    assert found.invalid == ""
    assert list(found.waste)[:3] == pytest.approx([0.75, 0.5, 0.25])


def test_a_shared_block_counts_once() -> None:
    pair = Trace("pair", (request(0.0, 512, 40, 0), request(0.002, 512, 40, 0)))
    found = served(subject(), pair)
    # 31 blocks are shared, the last prompt block is not, since a hit is less than the prompt.
    slots = (31 + 2 + 2) * 16
    live = 31 * 16 + 2 * 16 + 3 + 1
    assert found.invalid == ""
    assert found.hit_tokens == 31 * 16
    assert found.waste[3] == pytest.approx(1 - live / slots)


def test_the_clock_is_paid_by_the_cost() -> None:
    found = serve(subject(), TINY, 200, Cost(1.0, 0.5, 0.25, 0.125), max_seqs=8, max_tokens=4096)
    steps = (
        [1 + 512 * 0.5 + 512 * 0.125]
        + [1 + 0.25 + n * 0.125 for n in (513, 514)]
        + [1 + 552 * 0.5 + 1064 * 0.125, 1 + 0.25 + 1025 * 0.125]
    )
    assert found.virtual_s == pytest.approx(1.0 + sum(steps[3:]) / 1e3)
    assert found.first_s == pytest.approx([steps[0] / 1e3, steps[3] / 1e3, steps[3] / 1e3])


@pytest.mark.parametrize(
    "spec_name", ["reference", "plain", "reference:make_uncached", "reference:make_scheduler_swap"]
)
@pytest.mark.parametrize("block_size", [16, 64])
def test_every_position_is_accounted_for_under_preemption(spec_name: str, block_size: int) -> None:
    trace = small(60)
    found = served(open_subject(find(spec_name), block_size), trace, blocks=4096 // block_size, tokens=512)
    assert found.invalid == ""
    assert found.finished == 60
    positions = sum(r.prompt_tokens + max(1, r.output_tokens) - 1 for r in trace.requests)
    assert found.computed_tokens - found.recomputed_tokens + found.hit_tokens == positions
    assert found.preemptions
    assert found.hit_tokens <= found.ceiling_tokens
    assert found.ceiling_tokens == count(block_keys(trace.requests, block_size), None).hits * block_size
    assert (found.hit_tokens == 0) == (spec_name == "reference:make_uncached")


def test_what_does_not_fit_is_counted_and_nothing_else() -> None:
    found = served(subject(), blocks=50)
    assert (found.invalid, found.finished, found.refused) == ("", 2, 1)
    assert found.asked_tokens == found.ceiling_tokens + 552 == 552


def test_a_slow_scheduler_is_stopped_and_its_pool_is_whole() -> None:
    found = served(subject(), small(30), seconds=0.0)
    assert (found.invalid, found.stopped, len(found.nanoseconds)) == ("", True, 1)


@pytest.mark.parametrize("block_size", [16, 128, 512])
def test_the_endless_cache_equals_the_plain_count(block_size: int) -> None:
    requests = [
        request(0.0, 1300, 1, 0, 1, 2),
        request(0.0, 1400, 1, 0, 1, 2),
        request(0.0, 1500, 1, 0, 3, 2),
        request(0.0, 700, 1, 0, 1),
        *small(80).requests,
    ]
    endless = Endless(block_size)
    assert sum(map(endless.request, requests)) == count(block_keys(requests, block_size), None).hits


def test_prompts_have_their_length_and_share_what_their_ids_share() -> None:
    first, second = (prompt_tokens(request(0.0, n, 1, 7, i)).tolist() for n, i in ((700, 8), (1000, 9)))
    assert (len(first), len(second)) == (700, 1000)
    assert first[:512] == second[:512]
    assert not set(first[512:]) & set(second)


def test_a_series_is_thinned_evenly() -> None:
    series = Series()
    for n in range(10 * POINTS):
        series.add(n)
    gaps = {b[0] - a[0] for a, b in zip(series.points, series.points[1:], strict=False)}
    assert gaps == {16}
    assert POINTS / 2 < len(series.points) <= POINTS


def test_holdings_count_and_refuse() -> None:
    holdings = Holdings()
    holdings.take([1, 2, 3], 0)
    holdings.take([1, 2, 4], 2)
    assert (len(holdings), holdings.repeats) == (4, 2)
    with pytest.raises(Wrong, match="block 3 is handed out while another request holds it"):
        holdings.take([5, 3], 1)
    holdings.drop([1, 2, 3])
    assert holdings.repeats == 0


# ---------------------------------------------------------------- what makes a run invalid


EQUAL = Trace("equal", (request(0.0, 500, 5, 0), request(0.0, 500, 5, 0)))
"""Two at once, so that neither finds the other's blocks; 31 of 32 are full."""


@pytest.mark.parametrize(
    ("scheduler", "options", "named"),
    [
        (EndsEarly, {}, r"finished are \[0\], all tokens have \[\]"),
        (EndsLate, {}, r"finished are \[\], all tokens have \[0\]"),
        (Loses, {}, "199 blocks are free after all requests have ended, expected 200"),
        (Repeats, {}, "request 0 goes on at position 511, expected 512"),
        (Boasts, {}, "request 0 starts at position 16, only 0 of its blocks were ever asked"),
        (Mixes, {"trace": Trace("two", (request(0, 99, 2, 0), request(0, 99, 2, 1)))}, "is handed out while"),
        (Overshoots, {"tokens": 100}, "1 rows with 200 tokens are more than a step may have"),
        (Idles, {}, "nothing is planned, and 3 requests are left"),
        (Garbles, {}, r"output\(0\) is not the 3 tokens"),
        (Hides, {"trace": small(60), "blocks": 128, "tokens": 512}, "request|block"),
        (Lends, {}, "33 blocks are in tables, free_blocks.. leaves 0 for them"),
        (MergesTails, {"trace": EQUAL}, "step 1: entry 31 of request 1 changes, and its block is not"),
        (Dies, {}, "step 0: RuntimeError: out of memory"),
    ],
)
def test_a_faulty_scheduler_is_invalid(scheduler: type[Wrapped], options: dict[str, Any], named: str) -> None:
    found = served(subject(scheduler), **options)
    assert found.invalid.startswith("step ")
    assert re.search(named, found.invalid), found.invalid


def test_equal_blocks_may_become_one() -> None:
    found = served(subject(Merges), EQUAL)
    assert (found.invalid, found.finished, found.hit_tokens) == ("", 2, 0)


# ---------------------------------------------------------------- cells and a whole run


def step(s: Subject, sequences: int = 20) -> Sample:
    samples: list[Sample] = []

    def pedantic(target: Any, setup: Any, teardown: Any, rounds: int) -> list[float]:
        for _ in range(rounds):
            arguments, _options = setup()
            target(*arguments)
            teardown(*arguments)
        return [1e-6] * rounds

    point = Point("scheduler_step", {"sequences": sequences})
    Job([s], [point], 0.001, samples.append).measure(point, pedantic)
    return samples[0]


class Skips(Wrapped):
    """Forgets a request now and then."""

    steps = 0

    def plan(self) -> list[Any]:
        self.steps += 1
        rows: list[Any] = self.inner.plan()
        return rows[1:] if self.steps % 10 == 0 else rows

    def feed(self, tokens: Sequence[int]) -> list[int]:
        finished: list[int] = self.inner.feed([2000, *tokens] if self.steps % 10 == 0 else tokens)
        return finished


@pytest.mark.parametrize("name", ["reference", "plain"])
def test_a_step_is_timed_and_checked(name: str) -> None:
    sample = step(open_subject(find(name), 16))
    assert sample.note == ""
    assert (sample.unit, sample.rounds >= 3) == ("ns/sequence", True)


def test_a_wrong_step_has_no_number() -> None:
    assert step(subject(Skips)).note.startswith("INVALID: [19, 20] rows a step")
    assert step(subject(Repeats)).note.startswith("INVALID: tokens computed of request 0 is 2, expected 1")
    assert step(Subject("none", standin.Standin, 16)).note.startswith("unsupported: no scheduler")


def test_the_scheduler_belongs_to_the_manager_that_is_named() -> None:
    uncached = open_subject(find("reference:make_uncached"), 16).open_scheduler(8, 4, 16)
    assert "prefix" not in uncached.capabilities
    only = open_subject(find("reference:make_scheduler_swap"), 16)
    assert "swap" in only.open_scheduler(8, 4, 16).capabilities
    with pytest.raises(Unsupported, match="it is a scheduler only"):
        only.open(8)
    with pytest.raises(Unsupported, match="no scheduler: no factory make_scheduler"):
        Subject("none", standin.Standin, 16).open_scheduler(8, 4, 16)


def test_the_cost_model_is_in_the_matrix() -> None:
    (point,) = load(spec.find(), ["scheduler_replay"], True)
    assert "= 5 + 0.0141 a prefill token" in str(Cost(**point.settings["cost"]))
    assert point.settings["max_seqs"] > 0
    assert "scheduler_step" in CELLS


def test_a_run_writes_the_table_and_the_series(tmp_path: Path) -> None:
    points = load(spec.find(), ["scheduler_replay"], True)
    subjects = [open_subject(find("reference"), 16), subject(Garbles), Subject("none", standin.Standin, 16)]
    plan = Plan(subjects, points, TINY, [3200, 0], True, 0)
    console = Console(file=io.StringIO(), width=200)
    assert measure(plan, tmp_path, console, False) == 1
    (folder,) = tmp_path.iterdir()
    samples = read(folder / "bench.jsonl").samples
    by_name = {(s.implementation, s.parameters["capacity_tokens"]): s for s in samples}
    assert len(by_name) == len(samples) == 6
    assert by_name["reference", 3200].counters["finished"] == 3
    assert by_name["Garbles", 3200].note.startswith("INVALID: step ")
    assert by_name["none", 3200].note.startswith("unsupported: no scheduler")
    assert by_name["reference", "unbounded"].note == "unsupported: the pool of a scheduler has a bound"
    text = (folder / "bench.md").read_text(encoding="utf-8")
    assert "| reference, 3,200 tokens" in text
    assert "| hit rate, ceiling" in text
    assert "0.3249, 0.3249" in text
    assert "ms a step = 5 + 0.0141 a prefill token" in text
    series = (folder / "scheduler_series.csv").read_text(encoding="utf-8").splitlines()
    head = "implementation,capacity_tokens,virtual_s,running,waiting,free_blocks,hit_tokens,waste"
    assert series[0] == head
    assert sum(line.startswith("reference,3200,") for line in series) == 5

"""The benchmark of ranks: counts and bounds, the model on paper, a trace over a loss, real processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvproof import spec
from kvproof.bench import rank_child
from kvproof.bench.crew import Crew, Post
from kvproof.bench.matrix import Point, load
from kvproof.bench.pressure import Pressure
from kvproof.bench.rank_cells import measure
from kvproof.bench.rank_groups import Apart, Ranks, Together
from kvproof.bench.rank_memory import Expected, RankMemory, links
from kvproof.bench.rank_network import CountedNetwork
from kvproof.bench.rank_paper import levels, on_paper
from kvproof.bench.rank_pressure import cut
from kvproof.bench.rank_work import KINDS, steps
from kvproof.bench.ranks import count
from kvproof.bench.subject import Subject, Unsupported, Wrong, open_subject
from kvproof.bench.traces import Trace, synthetic
from kvproof.contract import Diverged, Network
from kvproof.records import Sample
from kvproof.report import ranks as report
from kvproof.subjects import find
from kvproof_impls.faulty import ranks as faulty
from kvproof_impls.reference.adapter import make_ranks, make_scheduler_uncached, message_parts

POOLS = (70, 64, 65)


def subject(make: Callable[..., Any] = make_ranks, **more: Any) -> Subject:
    return Subject("ours", None, 16, make_ranks=make, message_parts=message_parts, **more)


def settings_of(cell: str) -> dict[str, Any]:
    return next(p.settings for p in load(spec.find(), [cell], True))


# ---------------------------------------------------------------- steps


def test_a_period_has_every_kind_and_grows_all_tables_once() -> None:
    found = list(islice(steps(3, 4, 16), 3, 3 + 16))
    assert [kind for kind, _ in found].count("new blocks") == 1
    assert {kind for kind, _ in found} == {*KINDS, ""}
    added = [op[1] for _, operations in found for op in operations if op[0] == "add"]
    freed = [op[1] for _, operations in found for op in operations if op[0] == "free"]
    assert added == freed
    assert all(sum(op[0] == "append" for op in operations) == 3 for _, operations in found)
    with pytest.raises(Unsupported, match="blocks of 2 tokens"):
        next(steps(3, 4, 2))


def test_tables_of_a_step_of_256_sequences_are_small_on_the_wire() -> None:
    """At most 64 bytes when no table changed, else 8 a changed entry besides; tokens and digest apart."""
    found = count(subject(), 2, 256, 4, 1)
    still, grown = found["decode"].counts, found["new blocks"].counts
    assert still["changed_entries"] == 0
    assert still["tables_bytes"] <= 64
    assert grown["changed_entries"] == 256
    assert 256 < grown["tables_bytes"] <= 8 * 256 + 64
    for counts in (still, grown):
        parts = sum(counts[f"{p}_bytes"] for p in report.BYTES if f"{p}_bytes" in counts)
        assert parts == counts["bytes_a_rank"] == counts["bytes"]
        assert 256 < counts["tokens_bytes"] <= 3 * 256 + 8
        assert counts["delta_to_whole"] == counts["tables_bytes"] / counts["whole_tables"]


def test_whole_tables_in_every_step_have_no_time() -> None:
    with pytest.raises(Wrong, match="changed entries: allowed are 8 an entry and 64"):
        count(subject(faulty.WholeTables), 2, 16, 8, 1)


def test_a_group_that_is_wrong_has_no_time() -> None:
    with pytest.raises(Wrong, match="Diverged: rank 1"):
        count(subject(faulty.OneStepSkipped), 2, 4, 4, 1)


def test_parts_must_be_all_of_a_message() -> None:
    network = CountedNetwork(2, lambda data: {"tokens": len(data) - 1})
    with pytest.raises(Wrong, match="names 4 of the 5 bytes"):
        network.send(0, 1, b"hello")


def test_depth_is_the_longest_chain_of_messages() -> None:
    network = CountedNetwork(3)
    network.send(0, 1, b"a")
    network.send(0, 2, b"bc")
    assert network.depth == 0  # nobody has them yet
    assert network.receive(1) == (0, b"a")
    network.send(1, 0, b"d")
    assert network.receive(0) == (1, b"d")
    assert (network.messages, network.bytes, network.depth, network.busiest) == (3, 4, 2, 3)
    network.begin()
    assert (network.messages, network.depth) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 9])
def test_the_model_on_paper_counts_what_the_protocol_sends(ranks: int, kind: str) -> None:
    counts = count(subject(), ranks, 16, 4, 1)[kind].counts
    paper = on_paper(settings_of("ranks_scale")["paper"], ranks, 16, kind, 4, 16)
    assert counts["messages"] == paper["paper_messages"]
    assert counts["depth"] == paper["paper_depth"]
    assert 0.7 * paper["paper_bytes"] <= counts["bytes"] <= 1.02 * paper["paper_bytes"]


def test_levels_of_a_tree() -> None:
    assert [levels(ranks, 8) for ranks in (1, 2, 9, 10, 73, 74, 1024)] == [0, 1, 1, 2, 2, 3, 4]


# ---------------------------------------------------------------- a trace, and a rank that is killed


def trace(requests: int, longest: int = 120) -> Trace:
    return cut(synthetic(5, requests), longest)


def served(ranks: Ranks, requests: int, kill: int, most: int = 40) -> Pressure:
    small = trace(requests)
    small = Trace(small.name, tuple(_shorter(r, most) for r in small.requests))
    run = Pressure(make_scheduler_uncached(min(POOLS), 16, 8, 256), ranks, small, kill)
    with ranks:
        run.run()
    return run


def _shorter(request: Any, most: int) -> Any:
    return type(request)(
        request.arrival_s, request.prompt_tokens, most, request.block_ids, request.trace_block
    )


@pytest.mark.parametrize("kill", [-1, 0, 2])
def test_every_request_has_its_tokens_though_a_rank_is_killed(kill: int) -> None:
    ranks = Together(subject(), POOLS)
    run = served(ranks, 24, kill)
    assert run.counts["finished"] == 24
    assert run.counts["output_tokens"] == 24 * 40
    assert run.counts["preemptions"] == run.counts["resumes"] > 0
    assert ranks.lost == ([kill] if kill >= 0 else [])
    left = 3 - len(ranks.lost)
    assert sorted(ranks.end()) == [rank for rank in range(3) if rank != kill]
    assert run.counts["reads"] >= 24 * 40 * left
    assert run.counts["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("make", "kill"),
    [
        (faulty.OneStepSkipped, -1),
        (faulty.SharedOnSomeRanks, -1),
        (faulty.ZerosAtResume, -1),
        (faulty.LastTokenOnly, -1),
        (faulty.EpochsNotSettled, 0),
    ],
)
def test_ranks_that_are_wrong_do_not_serve_a_trace(make: Callable[..., Any], kill: int) -> None:
    with pytest.raises((Wrong, Diverged), match="rank"):
        served(Together(subject(make), POOLS), 24, kill)


def test_a_memory_reads_what_its_table_says() -> None:
    memory, kv = RankMemory(8, 4), Expected()
    tokens = [9, 8, 7, 6, 5, 4]
    kv.extend(tokens)
    assert memory.compute([3, 1], 0, tokens) == (kv.last, kv.total)
    kv.extend([3])
    assert memory.compute([3, 1], 6, [3]) == (kv.last, 0)
    kv.extend([2])
    assert memory.compute([3, 2], 7, [2]) != (kv.last, 0)  # another block for its tail
    assert len(set(links([1, 2, 1, 2], 0).tolist())) == 4
    assert np.array_equal(links([1, 2], 0)[1:], links([2], 1))
    with pytest.raises(Wrong, match=r"a table of 1 blocks for positions 3\.\.4"):
        memory.compute([3], 3, [1, 2])
    with pytest.raises(Wrong, match="none of the 8"):
        memory.compute([8], 0, [1])


# ---------------------------------------------------------------- processes


def opened() -> Subject:
    pytest.importorskip("torch.distributed", reason="torch is not installed")
    return open_subject(find("reference"), 16)


@pytest.mark.parametrize("kill", [0, 1])
def test_processes_serve_a_trace_though_one_is_killed(kill: int) -> None:
    ranks = Apart(opened(), POOLS)
    run = served(ranks, 10, kill, most=20)
    assert run.counts["finished"] == 10
    assert ranks.lost == [kill]
    assert ranks.alive == [rank for rank in range(3) if rank != kill]


def test_steps_over_processes_have_a_time_each() -> None:
    points = [
        Point("ranks_sync", {"ranks": ranks, "sequences": 4, "step": kind}, {"blocks": 2, "rounds": 1})
        for ranks in (1, 2)
        for kind in KINDS
    ]
    samples: list[Sample] = []
    measure([opened()], points, synthetic(0, 1), samples.append, lambda _: None)
    assert len(samples) == 6
    assert all(s.rounds and s.median > 0 and not s.note for s in samples)
    assert all(s.counters["alone_ratio"] > 0 for s in samples if s.parameters["ranks"] == 2)
    assert report.table(samples).shape == (3, 3)


def talk(post: Post, what: str) -> None:
    """Work of a crew: it speaks, it raises, it ends."""
    post.pipe.send(what)
    post.pipe.send(Unsupported("no such thing"))


def test_a_crew_hears_what_is_said_raised_and_ended() -> None:
    with Crew(1, talk, "hello") as crew:
        assert crew.told([0]) == [(0, "hello")]
        with pytest.raises(Unsupported, match="no such thing"):
            crew.told([0])
        assert crew.told([0]) == [(0, None)]


# ---------------------------------------------------------------- who has none, and the tables


def test_factories_of_ranks_are_told_by_name_or_arguments() -> None:
    named, ours = open_subject(find("reference:make_ranks_own"), 16), f"{__name__}:lonely"
    told = open_subject(find(ours), 16)
    assert all(s.make is None and s.make_scheduler is None and s.make_ranks for s in (named, told))
    assert named.message_parts is not None
    both = open_subject(find("reference"), 16)
    assert both.make is not None
    assert both.make_ranks is not None
    assert both.rank_process
    assert open_subject(find("reference:make_uncached"), 16).make_ranks is None


def lonely(pools: Sequence[int], block_size: int, network: Network) -> Any:
    return make_ranks(pools, block_size, network)


def test_what_is_not_there_says_so() -> None:
    points = [*load(spec.find(), ["ranks_sync"], True)[:3], *load(spec.find(), ["ranks_pressure"], True)]
    samples: list[Sample] = []
    measure([subject(lonely)], points, trace(4), samples.append, lambda _: None)
    assert all(s.note.startswith("unsupported: no ") and not s.rounds for s in samples)
    assert len(samples) == len(points)


def test_a_missing_package_is_a_precondition() -> None:
    samples: list[Sample] = []
    points = load(spec.find(), ["ranks_sync"], True)[:2]
    where = "kvproof.selftest.test_ranks_bench:without"
    measure([subject(rank_process=where)], points, trace(4), samples.append, lambda _: None)
    assert [s.note for s in samples] == ["PRECONDITION: no networking here: pip install torchless"] * 2


def without(*_: Any) -> Any:
    raise ModuleNotFoundError("no networking here", name="torchless")


PINS = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux keeps a process on a core")


@PINS
def test_a_rank_that_is_timed_stays_on_a_core() -> None:
    samples: list[Sample] = []
    points = load(spec.find(), ["ranks_sync"], True)[:1]
    where = "kvproof.selftest.test_ranks_bench:cores"
    measure([subject(rank_process=where)], points, trace(4), samples.append, lambda _: None)
    assert f"RuntimeError: cores [{min(os.sched_getaffinity(0))}] " in samples[0].note


@PINS
def test_ranks_that_are_more_than_the_cores_run_on_any(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[set[int]] = []
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: kept.append(cores))
    for rank, world, cores in ((1, 2, [3, 7]), (1, 3, [3, 7]), (0, 1, [])):
        rank_child.place(rank, world, cores)
    assert kept == [{7}, {3, 7}]


def cores(*_: Any) -> Any:
    raise RuntimeError(f"cores {sorted(os.sched_getaffinity(0))}")


def test_the_tables_show_every_cell() -> None:
    found = count(subject(), 2, 16, 4, 1)
    assert set(found) == set(KINDS)
    samples: list[Sample] = []
    points = [
        Point("ranks_step", {"ranks": 2, "sequences": 4, "step": "decode"}, {"blocks": 2, "rounds": 1}),
        Point("ranks_scale", {"ranks": 5, "sequences": 4, "step": "decode"}, settings_of("ranks_scale")),
    ]
    pressed = load(spec.find(), ["ranks_pressure"], True)[0]
    small = {"requests": 6, "capacity_tokens": 1024, "longest": 100, "where": "one process"}
    points.append(Point(pressed.cell, pressed.parameters | small, pressed.settings))
    measure(
        [subject(make_scheduler_uncached=make_scheduler_uncached)],
        points,
        synthetic(5, 6),
        samples.append,
        lambda _: None,
    )
    console = Console(record=True, width=150)
    report.show(console, samples)
    text = console.export_text()
    for part in ("ranks: counted", "16 (16)", "ranks: one is killed", "6, 6, 0"):
        assert part in text
    assert all(report.caption([s]) for s in samples)

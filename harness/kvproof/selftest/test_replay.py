"""Replay counts against the harness's LRU, and that against one written as plainly as can be."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kvproof.bench.lru import Counts, block_keys, ceiling, count
from kvproof.bench.replay import replay, waste
from kvproof.bench.subject import Subject, Wrong
from kvproof.bench.traces import Request, Trace, read, synthetic
from kvproof.selftest import bench_standin as standin


def small(seed: int, n: int) -> Trace:
    """A synthetic trace cut to short prompts, so that a naive count is quick."""
    requests = [
        Request(r.arrival_s, min(r.prompt_tokens, 4000), r.output_tokens, np.asarray(r.block_ids)[:8])
        for r in synthetic(seed, n).requests
    ]
    return Trace("small", tuple(requests))


def brute_force(prefixes: list[list[tuple[int, ...]]], capacity: int) -> Counts:
    """An LRU that keeps (time of last use, prefix) of everything and looks for the oldest each time.

    The clock runs backwards through a request, so that its tail is older than its head.
    """
    used: dict[tuple[int, ...], tuple[int, int]] = {}
    asked = hits = evictions = refused = 0
    for now, one in enumerate(prefixes):
        if len(one) > capacity:
            refused += 1
            continue
        asked += len(one)
        for prefix in one:
            if prefix not in used:
                break
            hits += 1
        for depth, prefix in enumerate(one):
            used[prefix] = (now, -depth)
        while len(used) > capacity:
            del used[min(used, key=lambda p: used[p])]
            evictions += 1
    return Counts(asked, hits, evictions, len(used), refused)


def prefixes(trace: Trace) -> list[list[tuple[int, ...]]]:
    out = []
    for r in trace.requests:
        ids = np.asarray(r.block_ids).tolist()[: r.prompt_tokens // 512]
        out.append([tuple(ids[: i + 1]) for i in range(len(ids))])
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", [4, 8, 20, 60, 10_000])
def test_lru_equals_brute_force(seed: int, capacity: int) -> None:
    trace = small(seed, 120)
    got = count(block_keys(trace.requests, 512), capacity)
    assert got == brute_force(prefixes(trace), capacity)
    assert got.asked == got.hits + got.evictions + got.resident


def test_keys_name_the_whole_prefix() -> None:
    def request(*ids: int) -> Request:
        return Request(0.0, 512 * len(ids), 1, np.array(ids, dtype=np.int32))

    first, second, third = block_keys([request(1, 2), request(3, 2), request(1, 2)], 512)
    assert first == third
    assert not set(first) & set(second)


def test_smaller_blocks_count_the_partial_tail() -> None:
    r = Request(0.0, 700, 1, np.array([1, 2], dtype=np.int32))
    assert [len(k) for k in block_keys([r], 512)] == [1]
    (keys,) = block_keys([r], 16)
    assert len(keys) == len(set(keys)) == 700 // 16


def subject(manager: type[standin.Standin], block_size: int = 64) -> Subject:
    return Subject(manager.__name__, manager, block_size)


@pytest.mark.parametrize("block_size", [64, 512])
@pytest.mark.parametrize("tokens", [4_096, 12_288, 65_536, None])
def test_replay_gives_the_exact_counts(block_size: int, tokens: int | None) -> None:
    trace = small(5, 150)
    capacity = None if tokens is None else tokens // block_size
    (run,) = replay([subject(standin.Standin, block_size)], trace, capacity)
    assert run.invalid == ""
    assert run.judged()
    assert run.counts() == run.oracle == count(block_keys(trace.requests, block_size), capacity)
    assert run.difference() == ""
    assert len(run.nanoseconds) == 150 - run.refused
    if tokens is None:
        assert run.hit_rate == run.ceiling == ceiling(trace.requests, block_size)


def test_replay_counts_what_does_not_fit() -> None:
    (run,) = replay([subject(standin.Standin)], small(5, 50), 32)
    assert run.refused == sum(len(k) > 32 for k in block_keys(small(5, 50).requests, 64))
    assert 0 < run.refused < 50
    assert run.difference() == ""


def test_another_order_under_the_same_name_is_seen() -> None:
    (run,) = replay([subject(standin.Fifo)], small(6, 200), 192)
    assert run.invalid == ""
    assert "exact" in run.difference()


def test_a_false_hit_is_invalid() -> None:
    run, honest = replay([subject(standin.Boaster), subject(standin.Standin)], small(6, 20), 192)
    assert "only 0 of them were ever committed" in run.invalid
    assert len(run.nanoseconds) == 0
    assert honest.invalid == ""
    assert len(honest.nanoseconds) == 20


def test_a_lost_block_is_invalid() -> None:
    (run,) = replay([subject(standin.Leaker)], small(6, 8), 640)
    assert "blocks are free after all requests left" in run.invalid


def test_without_cache_nothing_is_judged() -> None:
    (run,) = replay([subject(standin.Uncached)], small(6, 20), 192)
    assert (run.hits, run.evictions, run.difference(), run.judged()) == (0, 0, "", False)
    assert run.ceiling > 0


def test_a_slow_subject_stops_early_and_is_judged_on_its_own_rows() -> None:
    (run,) = replay([subject(standin.Standin)], small(6, 100), 192, seconds=0.0)
    assert len(run.nanoseconds) == 1
    assert run.difference() == ""


def test_waste_is_that_of_whole_blocks() -> None:
    requests = small(7, 3).requests
    found = waste(subject(standin.Standin), requests, 10_000)
    assert found.requests == 3
    assert found.steps == sum(r.output_tokens for r in requests)
    assert found.end == found.least_end > 0
    assert found.life == found.least_life > 0
    greedy = waste(subject(standin.Greedy), requests, 10_000)
    assert greedy.life > greedy.least_life


def test_waste_of_a_leaking_subject_is_wrong() -> None:
    with pytest.raises(Wrong, match="blocks are free after request"):
        waste(subject(standin.Leaker), small(7, 3).requests, 1000)


FIGURES = [
    # file, rows, block size, tokens of capacity, asked, hits, evictions, resident
    ("conversation", 1000, 512, None, 26_307, 5_780, 0, 20_527),
    ("conversation", 1000, 512, 2**18, 26_307, 999, 24_796, 512),
    ("conversation", 1000, 512, 2**20, 26_307, 1_167, 23_092, 2_048),
    ("conversation", 1000, 512, 2**22, 26_307, 4_331, 13_784, 8_192),
    ("conversation", 1000, 512, 2**24, 26_307, 5_780, 0, 20_527),
    ("conversation", 1000, 16, None, 857_850, 185_168, 0, 672_682),
    ("conversation", 1000, 16, 2**18, 857_850, 31_968, 809_498, 16_384),
    ("conversation", 1000, 16, 2**20, 857_850, 37_398, 754_916, 65_536),
    ("conversation", 1000, 16, 2**22, 857_850, 138_608, 457_098, 262_144),
    ("synthetic", 3993, 16, None, 3_822_794, 2_490_686, 0, 1_332_108),
    ("synthetic", 3993, 16, 2**20, 3_822_794, 587_153, 3_170_105, 65_536),
    ("synthetic", 3993, 16, 2**24, 3_822_794, 2_467_843, 306_375, 1_048_576),
]


@pytest.mark.skipif("KVPROOF_TRACES" not in os.environ, reason="KVPROOF_TRACES: folder of the public traces")
@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: "-".join(str(x) for x in f[:4]))
def test_public_traces_give_the_published_counts(
    figure: tuple[str, int, int, int | None, int, int, int, int],
) -> None:
    name, rows, block_size, tokens, asked, hits, evictions, resident = figure
    trace = read(Path(os.environ["KVPROOF_TRACES"]) / "mooncake" / f"{name}_trace.jsonl.gz").first(rows)
    capacity = None if tokens is None else tokens // block_size
    assert count(block_keys(trace.requests, block_size), capacity) == Counts(asked, hits, evictions, resident)

"""Steps of a group of ranks in one object: time, messages, bytes and depth, and the model of many ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvproof.bench.clock import calibrate, quiet
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.rank_network import CountedNetwork
from kvproof.bench.rank_paper import on_paper
from kvproof.bench.rank_work import KINDS, pool, steps
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.records import Sample
from kvproof.stats import quantiles

Emit: TypeAlias = Callable[[Sample], None]
UNIT = "us/step"
ENTRY = 4
"""Bytes of an entry of a whole table: int32, as a kernel reads it."""
DELTA = (8, 64)
"""The tables of a decode step may take so many bytes a changed entry, and so many besides."""


@dataclass
class Counted:
    """Steps of one kind: nanoseconds of each, and counts of the first, bytes a receiving rank.

    The first is the same step however many rounds there are.
    """

    nanoseconds: list[int] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)


def measure_steps(subjects: Sequence[Subject], points: Sequence[Point], emit: Emit) -> None:
    """The cells `ranks_step` and `ranks_scale`, all in this process."""
    for group in grouped(points):
        for s in subjects:
            for sample, _ in measured(s, group):
                emit(sample)


def measured(s: Subject, points: Sequence[Point]) -> Iterator[tuple[Sample, list[float]]]:
    """A sample of each point, and seconds of its rounds; points with the same group share a set-up."""
    for group in grouped(points):
        p, settings = group[0].parameters, group[0].settings
        before = calibrate()
        try:
            found = count(s, p["ranks"], p["sequences"], settings["blocks"], settings["rounds"])
            notes = dict.fromkeys(found, "")
        except Unsupported as e:
            found, notes = {}, dict.fromkeys(KINDS, f"unsupported: {e}")
        except Wrong as e:
            found, notes = {}, dict.fromkeys(KINDS, f"INVALID: {e}")
        cal = (before + calibrate()) / 2
        for point in group:
            kind = point.parameters["step"]
            if notes[kind]:
                yield empty(s.name, point, UNIT, notes[kind]), []
            else:
                yield _sample(s, point, found[kind], cal), [ns / 1e9 for ns in found[kind].nanoseconds]


def grouped(points: Sequence[Point]) -> Iterator[list[Point]]:
    """Points that differ in the kind of step only."""
    found: dict[tuple[str, int, int], list[Point]] = {}
    for point in points:
        p = point.parameters
        found.setdefault((point.cell, p["ranks"], p["sequences"]), []).append(point)
    yield from found.values()


def count(s: Subject, ranks: int, sequences: int, blocks: int, rounds: int) -> dict[str, Counted]:
    """Steps of every kind on a group over a counting network.

    Raises:
        Unsupported: it has no ranks.
        Wrong: an answer, a table or a digest is not what it must be, or the delta of a step is too large.
    """
    if s.make_ranks is None:
        raise Unsupported("no ranks: no factory make_ranks")
    size = s.block_size
    network = CountedNetwork(ranks, s.message_parts)
    try:
        group = s.make_ranks([pool(sequences, blocks, rounds, size)] * ranks, size, network)
        with quiet():
            return _count(group, network, sequences, blocks, size, rounds)
    except (Unsupported, Wrong):
        raise
    except Exception as e:
        raise Wrong(f"{type(e).__name__}: {e}") from e


def _count(
    group: Any, network: CountedNetwork, sequences: int, blocks: int, size: int, rounds: int
) -> dict[str, Counted]:
    found = {kind: Counted() for kind in KINDS}
    ranks, lengths, last = network.ranks, dict[int, int](), 0
    for epoch, (kind, operations) in enumerate(steps(sequences, blocks, size), 1):
        network.begin()
        start = time.perf_counter_ns()
        group.step(operations)
        spent = time.perf_counter_ns() - start
        for name, seq, *more in operations:
            lengths[seq] = lengths.get(seq, 0) + len(more[0]) if more else 0
            if name == "free":
                del lengths[seq]
        if ranks > 1 and group.digest(0) != group.digest(ranks - 1):
            raise Wrong(f"after a step the digests of rank 0 and {ranks - 1} differ")
        for rank in {0, ranks - 1}:
            if group.epoch(rank) != epoch:
                raise Wrong(f"rank {rank} is at epoch {group.epoch(rank)} after {epoch} steps")
        entries = sum(-(-n // size) for n in lengths.values())
        for seq in {0, sequences - 1} & lengths.keys():
            if len(group.table(ranks - 1, seq)) != -(-lengths[seq] // size):
                raise Wrong(f"{len(group.table(ranks - 1, seq))} blocks for {lengths[seq]} tokens")
        if kind:
            one = found[kind]
            one.nanoseconds.append(spent)
            counts = _counts(network, ranks, kind, entries, entries - last)
            one.counts = one.counts or counts
        last = entries
        if all(len(one.nanoseconds) >= rounds for one in found.values()):
            return found
    raise AssertionError("steps are without end")


def _counts(network: CountedNetwork, ranks: int, kind: str, entries: int, changed: int) -> dict[str, float]:
    """Of one step; what is said of bytes is of one rank that is told, but for `bytes`, of all."""
    counts: dict[str, float] = {
        "messages": network.messages,
        "bytes": network.bytes,
        "depth": network.depth,
        "busiest": network.busiest,
        "changed_entries": changed,
        "whole_tables": entries * ENTRY,
    }
    if ranks > 1:
        counts["bytes_a_rank"] = network.bytes / (ranks - 1)
        counts |= {f"{name}_bytes": size / (ranks - 1) for name, size in network.parts.items()}
    tables = counts.get("tables_bytes")
    if tables is not None:
        counts["delta_to_whole"] = tables / counts["whole_tables"]
        each, base = DELTA
        if kind != "admission" and tables > each * changed + base:
            took = f"the tables of a step took {tables:.0f} bytes for {changed} changed entries"
            raise Wrong(f"{took}: allowed are {each} an entry and {base}")
    return counts


def _sample(s: Subject, point: Point, found: Counted, cal: float) -> Sample:
    low, median, high = quantiles([ns / 1e3 for ns in found.nanoseconds])
    counters, p, settings = dict(found.counts), point.parameters, point.settings
    if "paper" in settings:
        shape = p["ranks"], p["sequences"], p["step"], settings["blocks"], s.block_size
        counters |= on_paper(settings["paper"], *shape)
    return Sample(
        implementation=s.name,
        cell=point.cell,
        parameters=point.parameters,
        unit=UNIT,
        median=median,
        low=low,
        high=high,
        rounds=len(found.nanoseconds),
        cal=cal,
        counters=counters,
    )

"""Cells that are not timed round by round: memory, trace replay, waste; and growth with the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.bench.clock import calibrate
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.memory import footprint
from kvproof.bench.replay import Replayed, replay, waste
from kvproof.bench.served import SERIES, Cost, Served
from kvproof.bench.serving import serve
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.bench.traces import Trace
from kvproof.records import Sample
from kvproof.stats import quantiles, ratio_interval, slope

Emit = Callable[[Sample], None]


def measure_memory(subjects: Sequence[Subject], point: Point, emit: Emit) -> None:
    """Bytes of metadata a block of an idle pool, tokens kept for the check of a hit apart."""
    for s in subjects:
        try:
            found = footprint(s, **point.parameters)
        except Unsupported as e:
            emit(empty(s.name, point, "bytes/block", f"unsupported: {e}"))
        except Wrong as e:
            emit(empty(s.name, point, "bytes/block", f"INVALID: {e}"))
        else:
            counters = {
                "token_bytes_block": found.tokens,
                "resident_bytes_block": found.resident,
                "create_ms": found.create_ms,
            }
            quartiles = (found.metadata,) * 3  # counted, not timed: the same in every process
            emit(_sample(s.name, point, "bytes/block", quartiles, found.children, counters))


def measure_replay(
    subjects: Sequence[Subject],
    point: Point,
    trace: Trace,
    capacities: Sequence[int],
    seconds: float,
    emit: Emit,
) -> list[str]:
    """Replay the first requests of a trace at each capacity (tokens, 0 for no bound).

    Returns:
        A line for each subject whose counts differ from the exact ones it promises.
    """
    differences = []
    part = trace.first(point.parameters["requests"])
    size = subjects[0].block_size
    for capacity in capacities:
        here = Point(
            point.cell,
            {
                "trace": part.name,
                "requests": len(part.requests),
                "block_size": size,
                "capacity_tokens": capacity or "unbounded",
            },
        )
        before = calibrate()
        runs = replay(subjects, part, capacity // size if capacity else None, seconds)
        cal = (before + calibrate()) / 2
        for run in runs:
            emit(_replayed(run, runs[0], here, cal))
            if run.difference():
                differences.append(f"{run.subject.name}, {here}: {run.difference()}")
    return differences


def _replayed(run: Replayed, first: Replayed, point: Point, cal: float) -> Sample:
    if run.invalid:
        return empty(run.subject.name, point, "us/request", f"INVALID: {run.invalid}")
    if not run.nanoseconds:
        return empty(run.subject.name, point, "us/request", "unsupported: no request fits the capacity")
    low, median, high, p90 = quantiles([ns / 1e3 for ns in run.nanoseconds], (0.25, 0.5, 0.75, 0.9))
    ns_block = sum(run.nanoseconds) / max(run.asked, 1)
    counters: dict[str, float] = {
        "requests_run": len(run.nanoseconds),
        "refused": run.refused,
        "blocks": run.asked,
        "hits": run.hits,
        "evictions": run.evictions,
        "resident": len(run.resident),
        "exact_hits": run.oracle.hits,
        "exact_evictions": run.oracle.evictions,
        "hit_rate": run.hit_rate,
        "ceiling": run.ceiling,
        "p90_us": p90,
        "ns_block": ns_block,
        "ns_block_per_cal": ns_block / cal,
    }
    if run is not first and first.nanoseconds and not first.invalid:  # over the requests that both served
        rows = min(len(run.nanoseconds), len(first.nanoseconds))
        ratio = ratio_interval(run.nanoseconds[:rows], first.nanoseconds[:rows], resamples=500)
        counters |= dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True))
    notes = [] if run.judged() else ["not judged against the exact counts: promises no lru-tail order"]
    if len(run.nanoseconds) < len(first.nanoseconds):
        notes.insert(0, f"stopped after {len(run.nanoseconds)} of {len(first.nanoseconds)} requests")
    return _sample(
        run.subject.name,
        point,
        "us/request",
        (low, median, high),
        len(run.nanoseconds),
        counters,
        "; ".join(notes),
        cal,
    )


def measure_waste(subjects: Sequence[Subject], point: Point, trace: Trace, emit: Emit) -> None:
    """Slots allocated and not filled while the trace's first requests decode, over all steps."""
    here = Point(point.cell, point.parameters | {"trace": trace.name, "block_size": subjects[0].block_size})
    for s in subjects:
        try:
            found = waste(s, trace.requests, point.parameters["steps"])
        except Wrong as e:
            emit(empty(s.name, here, "% of slots", f"INVALID: {e}"))
        else:
            counters = {
                "end_percent": found.end * 100,
                "least_percent": found.least_life * 100,
                "least_end_percent": found.least_end * 100,
                "requests_run": found.requests,
            }
            value = found.life * 100
            emit(_sample(s.name, here, "% of slots", (value, value, value), found.steps, counters))


def measure_serving(
    subjects: Sequence[Subject],
    point: Point,
    trace: Trace,
    capacities: Sequence[int],
    seconds: float,
    emit: Emit,
) -> list[dict[str, Any]]:
    """Serve the first requests of a trace with each scheduler at each capacity (tokens).

    Returns:
        Points of the series over virtual time: implementation, capacity_tokens, and `SERIES`.
    """
    part, size = trace.first(point.parameters["requests"]), subjects[0].block_size
    cost = Cost(**point.settings["cost"])
    budgets = {name: point.settings[name] for name in ("max_seqs", "max_tokens")}
    series = []
    for capacity in capacities:
        given = {
            "trace": part.name,
            "requests": len(part.requests),
            "block_size": size,
            "capacity_tokens": capacity or "unbounded",
        }
        here = Point(point.cell, given | budgets)
        for s in subjects:
            before = calibrate()
            try:
                if not capacity:
                    raise Unsupported("the pool of a scheduler has a bound")
                found = serve(s, part, capacity // size, cost, **budgets, seconds=seconds)
            except Unsupported as e:
                emit(empty(s.name, here, "us/step", f"unsupported: {e}"))
                continue
            emit(_served(s.name, found, here, cost, (before + calibrate()) / 2))
            where = {"implementation": s.name, "capacity_tokens": capacity}
            series += [where | dict(zip(SERIES, p, strict=True)) for p in found.series.points]
    return series


def _served(name: str, found: Served, point: Point, cost: Cost, cal: float) -> Sample:
    if found.invalid:
        return empty(name, point, "us/step", f"INVALID: {found.invalid}")
    if not found.nanoseconds:
        return empty(name, point, "us/step", "unsupported: no request fits the capacity")
    low, median, high = quantiles([ns / 1e3 for ns in found.nanoseconds])
    note = f"stopped: {found.finished} of {found.requests} requests in the time there is; " * found.stopped
    counters = found.counters()
    return _sample(
        name, point, "us/step", (low, median, high), len(found.nanoseconds), counters, f"{note}{cost}", cal
    )


def growth(samples: Sequence[Sample], emit: Emit) -> None:
    """For each subject the growth exponents of the cells `pool` and `evict` over the size of the pool."""
    found: dict[tuple[str, str, tuple[tuple[str, int], ...]], dict[int, float]] = {}
    for s in samples:
        if s.cell in ("pool", "evict") and s.rounds:
            others = tuple((k, v) for k, v in s.parameters.items() if k != "blocks")
            found.setdefault((s.cell, s.implementation, others), {})[s.parameters["blocks"]] = s.median
    for (cell, name, others), costs in found.items():
        if len(costs) > 1:
            value = slope(list(costs), list(costs.values()))
            pools = ", ".join(f"{b:,}" for b in costs)
            point = Point(f"{cell}_growth", {"pools": pools, **dict(others)})
            emit(_sample(name, point, "exponent", (value, value, value), len(costs)))


def _sample(
    name: str,
    point: Point,
    unit: str,
    quartiles: tuple[float, float, float],
    rounds: int,
    counters: dict[str, float] | None = None,
    note: str = "",
    cal: float | None = None,
) -> Sample:
    low, median, high = quartiles
    return Sample(
        implementation=name,
        cell=point.cell,
        parameters=point.parameters,
        unit=unit,
        median=median,
        low=low,
        high=high,
        rounds=rounds,
        cal=cal,
        counters=counters or {},
        note=note,
    )

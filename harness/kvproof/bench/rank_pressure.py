"""The cell `ranks_pressure`: a scheduler over ranks serves a trace, and a rank is killed on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.pressure import Pressure
from kvproof.bench.rank_groups import Apart, Together
from kvproof.bench.ranks import Emit
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.bench.traces import Trace
from kvproof.records import Sample
from kvproof.subjects.drive import describe

UNIT = "s"


def measure_pressure(subjects: Sequence[Subject], point: Point, trace: Trace, emit: Emit) -> None:
    """Serve the first requests of the trace; the time is that of the whole run on this machine."""
    p = point.parameters
    part = cut(trace.first(p["requests"]), p["longest"])
    here = Point(point.cell, p | {"trace": part.name, "requests": len(part.requests)}, point.settings)
    for s in subjects:
        try:
            emit(_run(s, here, part))
        except Unsupported as e:
            why = str(e)
            emit(empty(s.name, here, UNIT, why if why.startswith("PRE") else f"unsupported: {why}"))
        except Wrong as e:
            emit(empty(s.name, here, UNIT, f"INVALID: {e}"))
        except Exception as e:
            emit(empty(s.name, here, UNIT, f"INVALID: {describe(e)}"))


def cut(trace: Trace, longest: int) -> Trace:
    """The trace with no prompt of more than `longest` tokens."""
    found = []
    for r in trace.requests:
        n = min(r.prompt_tokens, longest)
        ids = None if r.block_ids is None else r.block_ids[: -(-n // r.trace_block)]
        found.append(replace(r, prompt_tokens=n, block_ids=ids))
    return replace(trace, requests=tuple(found))


def _run(s: Subject, point: Point, trace: Trace) -> Sample:
    p, settings = point.parameters, point.settings
    extra, world, size = settings["extra"], p["ranks"], s.block_size
    capacity = p["capacity_tokens"] // size
    pools = [capacity + extra[rank % len(extra)] for rank in range(world)]
    make = s.make_scheduler_uncached
    if make is None:
        raise Unsupported("no scheduler without a cache: no factory make_scheduler_uncached")
    scheduler = make(min(pools), size, settings["max_seqs"], settings["max_tokens"])
    kill = {"worker": world // 2, "driver": 0, "nobody": -1}[p["kill"]]
    group = Together(s, pools) if p["where"] == "one process" else Apart(s, pools)
    run = Pressure(scheduler, group, trace, kill)
    with group:
        run.run()
    if kill >= 0 and list(group.lost) != [kill]:
        raise Wrong(f"rank {kill} was to be killed, and lost are {list(group.lost)}")
    counters: dict[str, float] = {
        "requests": len(trace.requests),
        **run.counts,
        "capacity_blocks": min(pools),
        "killed_rank": kill,
        "killed_at": run.killed_at,
        "taken_again": group.again,
        "survivors": world - len(group.lost),
        "us_decision": run.seconds * 1e6 / max(run.counts["decisions"], 1),
    }
    return Sample(
        implementation=s.name,
        cell=point.cell,
        parameters=p,
        unit=UNIT,
        median=run.seconds,
        low=run.seconds,
        high=run.seconds,
        rounds=1,
        counters=counters,
    )

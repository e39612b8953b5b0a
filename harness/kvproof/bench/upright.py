"""The table of served traces: a row a figure, a column a scheduler and capacity."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from kvproof.bench.brief import number
from kvproof.records import Sample

ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests: all, finished, refused", ("requests", "finished", "refused")),
    ("steps", ("steps",)),
    ("virtual time, s", ("virtual_s",)),
    ("time to first token, s: p50, p90, p99", ("ttft_p50_s", "ttft_p90_s", "ttft_p99_s")),
    ("time per output token, ms: p50, p90, p99", ("tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms")),
    ("most running at once", ("most_running",)),
    ("preemptions: all, most of one request", ("preemptions", "most_preemptions")),
    ("tokens: computed, again", ("computed_tokens", "recomputed_tokens")),
    ("computed again / computed", ("recomputed_share",)),
    ("waste over the steps: mean, largest", ("waste_mean", "waste_max")),
    ("hit rate, ceiling", ("hit_rate", "ceiling")),
    ("host time: all, s", ("host_s",)),
    ("host time of a step, us: p99", ("host_step_p99_us",)),
)
SHARES = ("recomputed_share", "waste_mean", "waste_max", "hit_rate", "ceiling")
TEXT = """
Requests come when the trace says. The clock is virtual: a step takes what the line above says, whatever
this machine needs for it. Host time is this machine's, in submit, plan and feed. Hit rate = prompt tokens
found in the cache at a request's first start, full blocks / prompt tokens of the requests that started;
ceiling = the same for an infinite cache. Waste = (allocated slots - live tokens) / allocated slots after
each step, a shared block counted once; a token is live when its KV is computed, so blocks taken for a whole
prompt are waste until their chunk is computed. Every request was given exactly its tokens, no block was in
two tables without a hit, and the pool is whole at the end, or the column is INVALID."""


def table(samples: Sequence[Sample]) -> pd.DataFrame:
    """A column for each sample, named by implementation and capacity; what has no number says why."""
    names = [f"{s.implementation}, {_tokens(s.parameters['capacity_tokens'])} tokens" for s in samples]
    host = [f"{number(s.median)} ({number(s.low)}-{number(s.high)})" if s.rounds else "" for s in samples]
    lines = [[what, *(_figures(s, figures) for s in samples)] for what, figures in ROWS]
    lines.append(["host time of a step, us: median, quartiles", *host])
    if not all(s.rounds for s in samples):
        lines.append(["no figures", *("" if s.rounds else s.note for s in samples)])
    if any("stopped" in s.note for s in samples):
        lines.append(["stopped", *(s.note.partition(";")[0] if "stopped" in s.note else "" for s in samples)])
    return pd.DataFrame(lines, columns=["", *names])


def caption(samples: Sequence[Sample]) -> str:
    """What holds for all columns, and how to read the rows."""
    p = samples[0].parameters
    cost = next((s.note.rpartition("; ")[2] for s in samples if s.rounds), "")
    return (
        f"{p['trace']}, {p['requests']:,} requests, blocks of {p['block_size']} tokens, at most "
        f"{p['max_seqs']:,} requests and {p['max_tokens']:,} tokens a step. {cost}\n{TEXT}"
    )


def _tokens(capacity: int | str) -> str:
    return capacity if isinstance(capacity, str) else f"{capacity:,}"


def _figures(s: Sample, figures: Sequence[str]) -> str:
    found = [(name, s.counters.get(name)) for name in figures]
    return ", ".join(_figure(name, x) for name, x in found if x is not None) if s.rounds else ""


def _figure(name: str, x: float) -> str:
    if name in SHARES:
        return f"{x:.4f}"
    return f"{x:,.0f}" if x == int(x) else number(x)

"""Replays a trace through the contract and counts what the cache does with it.

Requests run one after another: add, commit all, free. A prompt of k full blocks is replayed as
k * block_size + 1 tokens in a pool of capacity + 1 blocks, so that the k blocks may all hit and
the one block more holds the token that must be computed.

An eviction is observed from block ids alone: a block that last held a committed full block is
handed out for something else, so that content is lost. Hence inserted = evictions + resident.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kvproof.bench.clock import quiet
from kvproof.bench.lru import Counts, block_keys, count
from kvproof.bench.subject import Subject, Wrong, blocks_for
from kvproof.bench.traces import Request, Trace, prompt
from kvproof.oracle.lru import LruCounter


@dataclass
class Replayed:
    """One subject's pass over a trace at one capacity.

    nanoseconds: add + commit + table + free of each request replayed.
    prompt_tokens: of those requests, as the trace gives them.
    oracle, ceiling_hits: what a plain tail-first LRU and an infinite cache give for the same rows.
    invalid: what was wrong, empty if nothing.
    """

    subject: Subject
    manager: Any
    nanoseconds: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    asked: int = 0
    hits: int = 0
    evictions: int = 0
    refused: int = 0
    resident: set[int] = field(default_factory=set)
    """Ids of blocks whose last content is a committed full block."""
    oracle: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0))
    ceiling_hits: int = 0
    invalid: str = ""
    done: bool = False

    def counts(self) -> Counts:
        return Counts(self.asked, self.hits, self.evictions, len(self.resident), self.refused)

    @property
    def hit_rate(self) -> float:
        """Prompt tokens served from the cache / prompt tokens asked, full blocks only."""
        return self.hits * self.subject.block_size / max(self.prompt_tokens, 1)

    @property
    def ceiling(self) -> float:
        """The same for an infinite cache."""
        return self.ceiling_hits * self.subject.block_size / max(self.prompt_tokens, 1)

    def judged(self) -> bool:
        """True if the subject promises the order that the oracle counts."""
        s = self.subject
        return "prefix" in s.capabilities and s.evicts == "lru-tail" and not s.lookahead

    def difference(self) -> str:
        """What its counts and the oracle's disagree on; empty if nothing, or if it is not judged."""
        got = self.counts()
        if not self.judged() or self.invalid or got == self.oracle:
            return ""
        names = [n for n in Counts.__slots__ if getattr(got, n) != getattr(self.oracle, n)]
        return ", ".join(f"{n} {getattr(got, n)}, exact {getattr(self.oracle, n)}" for n in names)


def replay(
    subjects: Sequence[Subject], trace: Trace, capacity: int | None, seconds: float = float("inf")
) -> list[Replayed]:
    """Replay a trace on several subjects, request by request in rotated order.

    Args:
        subjects: all with one block size, which divides the trace's.
        trace: every request has block ids (`with_ids`).
        capacity: of the cache in blocks; None: as many as the trace needs, nothing is evicted.
        seconds: a subject that has used this much stops early; its oracle covers the same rows.

    Returns:
        One entry a subject. Requests longer than the capacity are counted as refused and skipped.
    """
    block_size = subjects[0].block_size
    keys = list(block_keys(trace.requests, block_size))
    usable = (count(keys, None).resident if capacity is None else capacity) + 1
    runs = [Replayed(s, s.open(usable)) for s in subjects]
    exact, endless, refused, asked_tokens = LruCounter(capacity), LruCounter(None), 0, 0
    spent = {id(run): 0.0 for run in runs}
    with quiet():
        for number, (request, chain) in enumerate(zip(trace.requests, keys, strict=True)):
            if capacity is not None and len(chain) > capacity:
                refused += 1
                continue
            tokens = prompt(request, block_size).tolist()
            exact.request(chain)
            seen = endless.request(chain)
            asked_tokens += request.prompt_tokens
            turn = number % len(runs)
            for run in runs[turn:] + runs[:turn]:
                if run.done:
                    continue
                try:
                    _one(run, number, tokens, len(chain), seen)
                except Wrong as e:
                    run.invalid, run.done = f"request {number}: {e}", True
                spent[id(run)] += run.nanoseconds[-1] / 1e9 if run.nanoseconds else 0.0
                last = number == len(keys) - 1
                if last or run.done or spent[id(run)] > seconds:
                    run.done = True
                    _finish(run, exact, endless, refused, asked_tokens)
    for run in runs:
        if not run.done:  # the last request was refused
            _finish(run, exact, endless, refused, asked_tokens)
        whole = run.manager.free_blocks()
        if not run.invalid and whole != usable:
            run.invalid = f"{whole} blocks are free after all requests left, expected {usable}"
        run.manager = None
    return runs


def _finish(run: Replayed, exact: LruCounter, endless: LruCounter, refused: int, tokens: int) -> None:
    run.oracle = Counts(exact.asked, exact.hits, exact.evictions, len(exact.cached), refused)
    run.ceiling_hits, run.refused, run.prompt_tokens = endless.hits, refused, tokens


def _admit(manager: Any, seq: int, tokens: list[int]) -> tuple[Any, Any]:
    cached = manager.add(seq, tokens)
    manager.commit(seq, len(tokens))
    return cached, manager.table(seq)


def _one(run: Replayed, seq: int, tokens: list[int], full: int, seen: int) -> None:
    """Run one request; `full` blocks are asked, at most `seen` of them were committed before."""
    manager, block_size, clock = run.manager, run.subject.block_size, time.perf_counter_ns
    try:
        if timed := run.subject.timed:
            (cached, table), admission = timed(partial(_admit, manager, seq, tokens))
            spent = round((admission + timed(partial(manager.free, seq))[1]) * 1e9)
        else:
            start = clock()
            cached, answer = _admit(manager, seq, tokens)
            admitted = clock()
            table = list(answer)
            leaving = clock()
            manager.free(seq)
            spent = admitted - start + clock() - leaving
    except Exception as e:
        raise Wrong(f"{type(e).__name__}: {e}") from e
    hits = cached // block_size
    if cached % block_size and "partial" not in run.subject.capabilities:
        raise Wrong(f"{cached} cached tokens are no multiple of the block size {block_size}")
    if hits > seen:
        raise Wrong(f"{hits} blocks are said to be cached, only {seen} of them were ever committed")
    if not full < len(table) <= full + 1 + run.subject.lookahead:
        raise Wrong(f"the table has {len(table)} blocks, {full + 1} are needed")
    run.nanoseconds.append(spent)
    run.asked += full
    run.hits += hits
    if "prefix" in run.subject.capabilities:
        run.evictions += len(run.resident.intersection(table[hits:]))
        run.resident.difference_update(table[full:])
        run.resident.update(table[hits:full])


@dataclass(frozen=True)
class Waste:
    """(allocated slots - live tokens) / allocated slots, of sequences that run alone.

    end: when every answer is complete. life: over all decode steps, each with the same weight.
    least_end, least_life: the same for ceil(tokens / block_size) blocks, by arithmetic.
    """

    requests: int
    steps: int
    end: float
    life: float
    least_end: float
    least_life: float


def waste(subject: Subject, requests: Sequence[Request], max_steps: int) -> Waste:
    """Decode requests of the trace's true lengths one token at a time and watch `free_blocks`.

    Stops before the request with which the decode steps would exceed `max_steps`, but runs one.

    Raises:
        Wrong: the subject fails a call, or blocks are missing after a free.
    """
    size = subject.block_size
    chosen: list[Request] = []
    for r in requests:
        if chosen and sum(c.output_tokens for c in chosen) + r.output_tokens > max_steps:
            break
        chosen.append(r)
    longest = max(r.prompt_tokens + r.output_tokens for r in chosen)
    usable = blocks_for(longest, size) + 1 + blocks_for(subject.lookahead, size) + subject.lookahead
    manager = subject.open(usable)
    live, held = [], []
    ends: list[int] = []
    start = 1
    try:
        for seq, r in enumerate(chosen):
            length = r.prompt_tokens
            manager.add(seq, np.arange(start, start + length).tolist())
            manager.commit(seq, length)
            start = (start + length) % 2**30
            for step in range(r.output_tokens + 1):
                if step:
                    manager.append(seq, [0])
                    manager.commit(seq, length + step)
                live.append(length + step)
                held.append(usable - manager.free_blocks())
            ends.append(len(live) - 1)
            manager.free(seq)
            if manager.free_blocks() != usable:
                raise Wrong(f"{manager.free_blocks()} blocks are free after request {seq}, expected {usable}")
    except Wrong:
        raise
    except Exception as e:
        raise Wrong(f"request {seq}: {type(e).__name__}: {e}") from e
    tokens, slots = np.array(live), np.array(held) * size
    least = -(-tokens // size) * size

    def end(allocated: Any) -> float:
        return float(1 - tokens[ends].sum() / allocated[ends].sum())

    def life(allocated: Any) -> float:
        return float(1 - tokens.sum() / allocated.sum())

    return Waste(len(chosen), len(tokens) - len(chosen), end(slots), life(slots), end(least), life(least))

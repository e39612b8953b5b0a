"""Request traces: readers for two public formats, and a seeded synthetic one.

A trace says when a request came, how long its prompt and answer were and, in the Mooncake format
(FAST'25), which blocks of 512 prompt tokens it shares with others. Tokens are made from those ids.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]

TRACE_BLOCK = 512
"""Tokens that one id of the Mooncake format stands for."""
MOONCAKE_FIELDS = ("timestamp", "input_length", "output_length", "hash_ids")
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ALLOWED = (
    f"Mooncake JSON lines with {', '.join(MOONCAKE_FIELDS)}, or Azure CSV with the header {AZURE_HEADER}"
)
MAX_IDS = 2**31 // TRACE_BLOCK - 1


CONTINUED = 0.355
"""Share of requests that continue an earlier one."""
LONGEST = 126195
"""Tokens of the longest prompt."""


class BadTrace(ValueError):
    """A trace file that cannot be read; says the line, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    arrival_s: seconds from the start of the trace.
    prompt_tokens: at least 1. output_tokens: at least 0.
    block_ids: [ceil(prompt_tokens / trace_block)] int32, numbered from 0 by first appearance, the
        last one possibly partial; None if the trace does not say what is shared.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: Ids | None = None
    trace_block: int = TRACE_BLOCK


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in file order, which is the order of their arrival."""

    name: str
    requests: tuple[Request, ...]

    def first(self, n: int) -> Trace:
        return replace(self, requests=self.requests[:n])


def read(path: Path) -> Trace:
    """Read a trace file, gzip-compressed or not; the format is told from its content.

    Raises:
        BadTrace: not a known format, or a bad line, which is named.
        OSError: the file cannot be opened.
    """
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as e:
            raise BadTrace(f"{path.name}: damaged gzip data ({e})") from None
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise BadTrace(f"{path.name}: not text in UTF-8; allowed: {ALLOWED}") from None
    head = next((line.strip() for line in lines if line.strip()), "")
    if head.startswith("{"):
        requests = list(_mooncake(path.name, lines))
    elif head.replace(" ", "") == AZURE_HEADER:
        requests = list(_azure(path.name, lines))
    else:
        raise BadTrace(f"{path.name}: line 1: starts with {head[:40]!r}; allowed: {ALLOWED}")
    if not requests:
        raise BadTrace(f"{path.name}: holds no requests")
    return Trace(path.name.removesuffix(".gz"), tuple(requests))


def _count(where: str, field: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadTrace(f"{where}: {field} is {value!r}; allowed: an integer of at least {least}")
    return value


def _mooncake(name: str, lines: Sequence[str]) -> Iterator[Request]:
    dense: dict[int, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}: line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as e:
            raise BadTrace(f"{where}: not JSON ({e.msg}); allowed: {ALLOWED}") from None
        missing = [f for f in MOONCAKE_FIELDS if not isinstance(row, dict) or f not in row]
        if missing:
            raise BadTrace(f"{where}: no field {missing[0]}; allowed: {ALLOWED}")
        stamp, ids = row["timestamp"], row["hash_ids"]
        if isinstance(stamp, bool) or not isinstance(stamp, int | float) or not 0 <= stamp < float("inf"):
            raise BadTrace(f"{where}: timestamp is {stamp!r}; allowed: milliseconds, not negative")
        prompt = _count(where, "input_length", row["input_length"], 1)
        blocks = -(-prompt // TRACE_BLOCK)
        if not isinstance(ids, list) or len(ids) != blocks:
            got = len(ids) if isinstance(ids, list) else repr(ids)
            raise BadTrace(f"{where}: hash_ids has {got} ids; a prompt of {prompt} tokens needs {blocks}")
        for i in ids:
            dense.setdefault(_count(where, "an id of hash_ids", i, 0), len(dense))
        if len(dense) > MAX_IDS:
            raise BadTrace(f"{where}: more than {MAX_IDS} different ids; their tokens leave int32")
        output = _count(where, "output_length", row["output_length"], 0)
        yield Request(stamp / 1000, prompt, output, np.array([dense[i] for i in ids], dtype=np.int32))


def _azure(name: str, lines: Sequence[str]) -> Iterator[Request]:
    start: datetime | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.replace(" ", "").strip() == AZURE_HEADER:
            continue
        where, cells = f"{name}: line {number}", line.strip().split(",")
        if len(cells) != 3:
            raise BadTrace(f"{where}: {len(cells)} columns; allowed: the three of {AZURE_HEADER}")
        try:
            stamp = datetime.fromisoformat(cells[0])
        except ValueError:
            raise BadTrace(
                f"{where}: TIMESTAMP is {cells[0]!r}; allowed: YYYY-MM-DD HH:MM:SS.fraction"
            ) from None
        start = start or stamp
        try:
            seconds = (stamp - start).total_seconds()
        except TypeError:
            raise BadTrace(f"{where}: some lines have a time zone and some do not") from None
        counts = [int(c) if c.strip().isdigit() else c for c in cells[1:]]
        yield Request(
            seconds,
            _count(where, "ContextTokens", counts[0], 1),
            _count(where, "GeneratedTokens", counts[1], 0),
        )


def synthetic(seed: int, n: int) -> Trace:
    """A seeded trace of `n` requests shaped after Mooncake's `conversation` trace (FAST'25).

    It follows these figures of that trace: every prompt starts with one system prompt of 512
    tokens; 36 % of the requests are a further turn of an earlier one (there 38 %); prompt tokens
    mean 12,035, median 6,909, p90 27,367, at most 126,195; answer tokens mean 343, median 350;
    3.40 requests a second in bursts (coefficient of variation 3); a ceiling of 0.37 for the token
    hit rate. A turn follows its forerunner sooner (median 60 requests, there about 390), so that
    a trace of 1,000 requests already has the ceiling of the long one, 0.35 to 0.41 by seed.

    Raises:
        ValueError: n < 1.
    """
    if n < 1:
        raise ValueError(f"{n} requests: at least 1")
    rng = np.random.default_rng(seed)
    # Gamma gaps of shape 1 / cv**2 have that coefficient of variation.
    arrivals = np.cumsum(rng.gamma(1 / 9, 9 / 3.4, n))
    arrivals -= arrivals[0]
    outputs = np.clip(rng.normal(343, 190, n), 1, 2000).astype(int)
    requests: list[Request] = []
    open_turns: list[int] = []  # requests that no later one continues yet
    fresh_id = 1
    for i in range(n):
        shared = np.zeros(1, dtype=np.int32)
        tokens = TRACE_BLOCK
        if open_turns and rng.random() < CONTINUED:
            back = int(rng.lognormal(np.log(60), 1.0))
            at = max(0, int(np.searchsorted(open_turns, i - back, side="right")) - 1)
            before = requests[open_turns.pop(at)]
            assert before.block_ids is not None
            # A partial last block is replaced: its id would name other tokens once it is full.
            shared = before.block_ids[: before.prompt_tokens // TRACE_BLOCK]
            tokens = before.prompt_tokens + int(rng.lognormal(np.log(650), 1.4))
        else:
            tokens += int(rng.lognormal(np.log(5350), 1.2))
        tokens = min(tokens, LONGEST)
        more = -(-tokens // TRACE_BLOCK) - len(shared)
        ids = np.concatenate([shared, np.arange(fresh_id, fresh_id + max(more, 0), dtype=np.int32)])
        fresh_id += max(more, 0)
        requests.append(Request(float(arrivals[i]), tokens, int(outputs[i]), ids))
        open_turns.append(i)
    return Trace(f"synthetic(seed={seed}, n={n})", tuple(requests))


def with_ids(trace: Trace) -> Trace:
    """The same trace where requests without ids get new ones: nothing is shared, the ceiling is 0."""
    top = max((int(r.block_ids.max()) for r in trace.requests if r.block_ids is not None), default=-1)
    requests = []
    for r in trace.requests:
        if r.block_ids is None:
            blocks = -(-r.prompt_tokens // r.trace_block)
            r = replace(r, block_ids=np.arange(top + 1, top + 1 + blocks, dtype=np.int32))
            top += blocks
        requests.append(r)
    if top > MAX_IDS:
        raise BadTrace(f"{trace.name}: more than {MAX_IDS} blocks of {TRACE_BLOCK} tokens leave int32")
    return replace(trace, requests=tuple(requests))


def prompt_tokens(request: Request) -> Ids:
    """The prompt: [prompt_tokens] int32, equal where the ids are equal, different where they differ.

    Token t of id i is i * trace_block + t + 1, so it is never 0.

    Raises:
        ValueError: the request has no ids.
    """
    ids, size = request.block_ids, request.trace_block
    if ids is None:
        raise ValueError("the request has no block ids; with_ids() gives it new ones")
    rows = np.add.outer(ids * np.int32(size), np.arange(1, size + 1, dtype=np.int32))
    found: Ids = rows.ravel()[: request.prompt_tokens]
    return found


def prompt(request: Request, block_size: int) -> Ids:
    """Tokens to replay: [k * block_size + 1] int32 for the k full blocks of the prompt.

    They share at any block size that divides trace_block what the ids share. The last token, 0,
    stands for the one that must be computed, so that all k blocks may hit.

    Raises:
        ValueError: the block size does not divide trace_block, or the request has no ids.
    """
    size = request.trace_block
    if size % block_size:
        raise ValueError(f"block size {block_size}: allowed for a trace with ids are divisors of {size}")
    full = request.prompt_tokens // block_size * block_size
    return np.append(prompt_tokens(request)[:full], np.int32(0))

"""Metadata of an idle pool: a child process makes one manager and says what that took.

Run as `python -m kvproof.bench.memory SPEC NUM_BLOCKS CACHING WHAT`; answers one line of JSON.

Tokens kept for the check of a hit are told from metadata from outside: twice the block size doubles
them and nothing else, so (bytes a block at 32 - at 16) / 16 is what is kept of one token.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from kvproof.bench.subject import Subject, Unsupported, Wrong, open_subject
from kvproof.stats import median
from kvproof.subjects import find

SIZES = (16, 32)
"""Tokens a block of the two pools that are compared; all figures but the split are the first one's."""
CHILDREN = 2
"""Processes for time and resident memory, unless starting them is slow. Traced bytes are the same in each,
and tracing makes a pool of objects slower to make: that has a process of its own."""
SLOW_S = 5.0
"""No further process once those before it took so long: what some import takes longer than the pool."""
DEADLINE_S = 180


@dataclass(frozen=True)
class Footprint:
    """Bytes a block of an idle pool with blocks of 16 tokens.

    metadata, tokens: of what Python and numpy asked for, touched or not.
    resident: growth of the resident set; memory that was asked for and never touched is not in it.
    create_ms: time of the factory call.
    children: processes behind resident and create_ms, which are medians.
    """

    metadata: float
    tokens: float
    resident: float
    create_ms: float
    children: int


def footprint(subject: Subject, blocks: int, caching: bool) -> Footprint:
    """Make pools of `blocks` blocks in child processes, one after another.

    Raises:
        Unsupported: there is no such factory, or none that another process can open.
        Wrong: a child failed or gave no answer in 180 s.
    """
    subject.factory(caching)
    if subject.timed is not None:
        raise Unsupported("the memory of a program in another process is not counted")
    if not subject.spec:
        raise Unsupported("cannot be opened in another process")
    runs: list[tuple[float, float]] = []
    start = time.perf_counter()
    while not runs or (len(runs) < CHILDREN and time.perf_counter() - start < SLOW_S):
        runs.append(_ask(subject.spec, blocks, caching, "made"))
    resident, create_ms = zip(*runs, strict=True)
    small, large = _ask(subject.spec, blocks, caching, "traced")
    metadata, tokens = split(small / blocks, large / blocks)
    return Footprint(metadata, tokens, median(resident) / blocks, median(create_ms), len(runs))


def split(small: float, large: float) -> tuple[float, float]:
    """(metadata, tokens) of a block of 16 tokens, from the bytes of one of 16 and of one of 32."""
    tokens = (large - small) / (SIZES[1] - SIZES[0]) * SIZES[0]
    return round(small - tokens, 2), round(tokens, 2) + 0.0  # not -0.0


def _ask(spec: str, blocks: int, caching: bool, what: str) -> tuple[float, float]:
    """What `_made` or `_traced` finds in a process of its own."""
    command = [sys.executable, "-m", "kvproof.bench.memory", spec, str(blocks), "on" if caching else "off"]
    try:
        done = subprocess.run(
            [*command, what], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Wrong(f"a pool of {blocks} blocks was not made in {DEADLINE_S} s") from None
    if done.returncode:
        raise Wrong(f"child process: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    first, second = json.loads(done.stdout.splitlines()[-1])
    return first, second


def _open(spec: str, block_size: int, caching: bool) -> Callable[[int, int], Any]:
    make = open_subject(find(spec), block_size).factory(caching)
    make(64, block_size)  # imports and caches are not the pool's
    gc.collect()
    return make


def _made(spec: str, blocks: int, caching: bool) -> tuple[float, float]:
    """Resident bytes and milliseconds of one pool."""
    make = _open(spec, SIZES[0], caching)
    process = psutil.Process()
    before, start = process.memory_info().rss, time.perf_counter()
    kept = make(blocks, SIZES[0])
    created = time.perf_counter() - start
    gc.collect()
    grown = process.memory_info().rss - before
    del kept
    return grown, created * 1e3


def _traced(spec: str, blocks: int, caching: bool) -> tuple[int, int]:
    """Traced bytes of a pool of each of the two sizes."""
    found = []
    for size in SIZES:
        make = _open(spec, size, caching)
        tracemalloc.start()
        kept = make(blocks, size)
        found.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        del kept
    return found[0], found[1]


if __name__ == "__main__":
    name, count, cache, asked = sys.argv[1:]
    answer = {"made": _made, "traced": _traced}[asked](name, int(count), cache == "on")
    print(json.dumps(answer))

"""Metadata of an idle pool: a child process makes one manager and says what that took.

Run as `python -m kvproof.bench.memory SPEC NUM_BLOCKS BLOCK_SIZE CACHING`; answers one line of JSON.

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
from dataclasses import dataclass

import psutil

from kvproof.bench.subject import Subject, Unsupported, Wrong, open_subject
from kvproof.stats import median
from kvproof.subjects import find

SIZES = (16, 32)
"""Tokens a block of the two pools that are compared; all figures but the split are the first one's."""
CHILDREN = 3
"""Processes for time and resident memory; traced bytes are the same in each."""
DEADLINE_S = 60


@dataclass(frozen=True)
class Footprint:
    """Bytes a block of an idle pool with blocks of 16 tokens.

    metadata, tokens: of what Python and numpy asked for, touched or not.
    resident: growth of the resident set; memory that was asked for and never touched is not in it.
    create_ms: time of the factory call.
    """

    metadata: float
    tokens: float
    resident: float
    create_ms: float


def footprint(subject: Subject, blocks: int, caching: bool) -> Footprint:
    """Make pools of `blocks` blocks in child processes, one after another.

    Raises:
        Unsupported: there is no such factory, or none that another process can open.
        Wrong: a child failed or gave no answer in 60 s.
    """
    subject.factory(caching)
    if subject.timed is not None:
        raise Unsupported("the memory of a program in another process is not counted")
    if not subject.spec:
        raise Unsupported("cannot be opened in another process")
    runs = [_ask(subject.spec, blocks, SIZES[0], caching) for _ in range(CHILDREN)]
    resident, traced, create_ms = zip(*runs, strict=True)
    small, large = median(traced), _ask(subject.spec, blocks, SIZES[1], caching)[1]
    metadata, tokens = split(small / blocks, large / blocks)
    return Footprint(metadata, tokens, median(resident) / blocks, median(create_ms))


def split(small: float, large: float) -> tuple[float, float]:
    """(metadata, tokens) of a block of 16 tokens, from the bytes of one of 16 and of one of 32."""
    tokens = (large - small) / (SIZES[1] - SIZES[0]) * SIZES[0]
    return round(small - tokens, 2), round(tokens, 2)


def _ask(spec: str, blocks: int, block_size: int, caching: bool) -> tuple[float, float, float]:
    """What `_child` finds in a process of its own."""
    command = [sys.executable, "-m", "kvproof.bench.memory", spec, str(blocks), str(block_size)]
    command.append("on" if caching else "off")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise Wrong(f"a pool of {blocks} blocks was not made in {DEADLINE_S} s") from None
    if done.returncode:
        raise Wrong(f"child process: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    resident, traced, create_ms = json.loads(done.stdout.splitlines()[-1])
    return resident, traced, create_ms


def _child(spec: str, blocks: int, block_size: int, caching: bool) -> tuple[float, float, float]:
    """Resident bytes, traced bytes and milliseconds of one pool."""
    make = open_subject(find(spec), block_size).factory(caching)
    kept = [make(64, block_size)]  # imports and caches are not the pool's
    process = psutil.Process()
    gc.collect()
    before, start = process.memory_info().rss, time.perf_counter()
    kept.append(make(blocks, block_size))
    created = time.perf_counter() - start
    gc.collect()
    resident = process.memory_info().rss - before
    kept.pop()
    gc.collect()
    tracemalloc.start()
    kept.append(make(blocks, block_size))
    return resident, tracemalloc.get_traced_memory()[0], created * 1e3


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "on")))

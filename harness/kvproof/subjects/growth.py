"""Times one operation at several sizes, inside the worker, rounds interleaved over the sizes."""

from __future__ import annotations

import gc
import itertools
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from kvproof.subjects.remote import RemoteFactory, Unserved

ROUNDS = 7
BLOCK_SIZE = 16
MADE_S, TURN_S = 10.0, 1.0
"""Seconds in which the next size must be made, and take its turn, if it costs in proportion; else it is
left out. A subject whose cost grows shows that on the sizes before."""
PROMPT = 512
"""Blocks of the prompt that `first_miss` looks up."""

Body = Callable[[], None]


def _allocate(make: Any, pool: int) -> Body:
    """Add and free a sequence of 8 blocks, on a pool three quarters full."""
    manager = make(pool, BLOCK_SIZE)
    manager.add(0, list(range(1, pool * BLOCK_SIZE * 3 // 4)))
    manager.commit(0, pool * BLOCK_SIZE * 3 // 4 - 1)
    tokens = [7] * (8 * BLOCK_SIZE)

    def body() -> None:
        for seq in (1, 2, 3, 4):
            manager.add(seq, tokens)
            manager.free(seq)

    return body


def _append(make: Any, pool: int) -> Body:
    """Append 2 blocks to a sequence, token by token, on a pool three quarters full."""
    manager = make(pool, BLOCK_SIZE)
    manager.add(0, list(range(1, pool * BLOCK_SIZE * 3 // 4)))
    manager.commit(0, pool * BLOCK_SIZE * 3 // 4 - 1)

    def body() -> None:
        manager.add(1, [7])
        manager.commit(1, 1)
        for length in range(2, 2 * BLOCK_SIZE + 2):
            manager.append(1, [7])
            manager.commit(1, length)
        manager.free(1)

    return body


def _wide(make: Any, pool: int) -> Body:
    """Add a sequence of 64 blocks to an empty pool, append to it, and free it.

    Set up without filling the pool, so that a very large one is soon there.
    """
    manager = make(pool, BLOCK_SIZE)
    prompts = itertools.count(100)

    def body() -> None:
        tokens = [next(prompts)] * (64 * BLOCK_SIZE)  # found in no cache
        manager.add(1, tokens)
        manager.commit(1, len(tokens))
        manager.append(1, [7])
        manager.commit(1, len(tokens) + 1)
        manager.free(1)

    return body


def _hit(make: Any, pool: int) -> Body:
    """Find a cached prompt of 64 blocks, whose owner is gone, in an otherwise empty pool, and free it."""
    manager = make(pool, BLOCK_SIZE)
    tokens = list(range(1, 64 * BLOCK_SIZE + 2))

    def body() -> None:
        manager.add(0, tokens)
        manager.commit(0, len(tokens))
        manager.free(0)

    return body


def _cached(make: Any, blocks: int) -> tuple[Any, list[int]]:
    """A manager that has a prompt of so many blocks in its cache, and the prompt."""
    manager = make(2 * blocks + 8, BLOCK_SIZE)
    tokens = [i % 50_000 for i in range(blocks * BLOCK_SIZE + 1)]
    manager.add(0, tokens)
    manager.commit(0, len(tokens))
    manager.free(0)
    return manager, tokens


def _look_up(make: Any, blocks: int) -> Body:
    """Find a cached prompt of `blocks` blocks; cost a block must not grow with the prompt."""
    manager, tokens = _cached(make, blocks)

    def body() -> None:
        if hasattr(manager, "match"):
            manager.match(tokens)
        else:
            manager.add(1, tokens)
            manager.free(1)

    return body


def _first_miss(make: Any, at: int) -> Body:
    """Look up a prompt of PROMPT blocks, all of them cached from 0 to `at`, where it differs."""
    manager, tokens = _cached(make, PROMPT)
    tokens[at * BLOCK_SIZE] = 60_000

    def body() -> None:
        for _ in range(4):
            manager.match(tokens)

    return body


def _step_batch(make: Any, width: int) -> Body:
    """Batch tensor of a decode step for 8 sequences of `width` blocks each."""
    manager = make(8 * (width + 40) + 8, BLOCK_SIZE)
    for seq in range(8):
        manager.add(seq, [seq + 1] * (width * BLOCK_SIZE - seq))
        manager.commit(seq, width * BLOCK_SIZE - seq)
    seqs = list(range(8))
    length = [width * BLOCK_SIZE - s for s in seqs]

    def body() -> None:
        for s in seqs:
            manager.append(s, [5])
            length[s] += 1
            manager.commit(s, length[s])
        manager.batch(seqs)

    return body


def _queue(make: Any, waiting: int) -> Body:
    """A decode step of 8 requests while `waiting` others wait, each too large for what is left."""
    scheduler = make(64, BLOCK_SIZE, 16, 4096)
    for rid in range(8):
        scheduler.submit(rid, [rid + 1] * 8, 400)
    for _ in range(4):
        scheduler.feed([7] * len(scheduler.plan()))
    for rid in range(8, 8 + waiting):
        scheduler.submit(rid, [5] * (60 * BLOCK_SIZE), 1)

    def body() -> None:
        for _ in range(4):
            scheduler.feed([7] * len(scheduler.plan()))

    return body


BODIES: dict[str, Callable[[Any, int], Body]] = {
    "allocate": _allocate,
    "append": _append,
    "wide": _wide,
    "hit": _hit,
    "look_up": _look_up,
    "first_miss": _first_miss,
    "step_batch": _step_batch,
    "queue": _queue,
}


def _table_memory(make: Any, sizes: tuple[int, ...]) -> list[list[float]]:
    """[reported growth, traced growth] in bytes of the tables: one long sequence beside 63 short."""
    (width,) = sizes
    manager = make(width + 200, BLOCK_SIZE)
    for seq in range(1, 64):
        manager.add(seq, [seq])
    gc.collect()
    reported = manager.table_bytes()
    tokens = [3] * (width * BLOCK_SIZE)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        manager.add(0, tokens)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    held = manager.table_bytes()
    rows = manager.batch(list(range(64)))[0]
    return [[float(held - reported), float(grown)], [float(held), float(getattr(rows, "nbytes", 0))]]


def _bodies(make: Any, name: str, sizes: tuple[int, ...]) -> list[Body]:
    """One for each size, warmed up; from the third on, sizes that would take too long are left out."""
    bodies: list[Body] = []
    made, turn, last = 0.0, 0.0, 1
    for size in sizes:
        if len(bodies) >= 2 and (made * size > MADE_S * last or turn * size > TURN_S * last):
            break
        start = time.perf_counter()
        bodies.append(BODIES[name](make, size))
        made, start = time.perf_counter() - start, time.perf_counter()
        bodies[-1]()
        turn, last = time.perf_counter() - start, size
    return bodies


def _seconds(make: Any, name: str, body: Body) -> float:
    """Of one round; of a program out of process inside it, if it has `run`."""
    if isinstance(make, RemoteFactory) and name != "queue":  # a step depends on the answer to the last one
        try:
            return make.timed(body)[1]
        except Unserved:
            pass  # nothing was done
    start = time.perf_counter()
    body()
    return time.perf_counter() - start


def measure_growth(make: Any, name: str, sizes: tuple[int, ...]) -> list[list[float]]:
    """Seconds of each round for each size: rounds[i][j] is round j at sizes[i].

    Rounds for fewer sizes, if the last ones would take too long.
    """
    if name == "table_memory":
        return _table_memory(make, sizes)
    bodies = _bodies(make, name, sizes)
    times: list[list[float]] = [[] for _ in bodies]
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for i, body in enumerate(bodies):
                times[i].append(_seconds(make, name, body))
    finally:
        gc.enable()
    return times

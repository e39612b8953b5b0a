"""Times one operation at several sizes, inside the worker, rounds interleaved over the sizes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvproof.contract import ContractError
from kvproof.subjects.calls import no_clock
from kvproof.subjects.drive import Clock
from kvproof.subjects.remote import RemoteFactory, Unserved

ROUNDS = 7
BLOCK_SIZE = 16
MADE_S, TURN_S = 10.0, 1.0
"""Seconds in which the next size must be made, and take its turn, if it costs in proportion; else it is
left out. A subject whose cost grows shows that on the sizes before."""
LONGEST = 160
"""Characters of a refusal that are told."""
PROMPT = 512
"""Blocks of the prompt that `first_miss` looks up."""


@dataclass(frozen=True)
class Growth:
    """What one operation costs at several sizes."""

    times: dict[int, list[float]]
    """Size -> seconds of each round; of `table_memory` bytes, reported and traced."""
    left_out: str = ""
    """Which sizes were refused or not set up in time, and how; empty where none was."""


@dataclass(frozen=True)
class Body:
    """One round at one size."""

    timed: Callable[[], None]
    before: Callable[[], None] = lambda: None
    """What it needs, outside the time."""


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

    return Body(body)


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

    return Body(body)


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

    return Body(body)


def _free(make: Any, pool: int) -> Body:
    """Free 8 sequences of 2 blocks, the second one partial, from an otherwise empty pool."""
    manager = make(pool, BLOCK_SIZE)
    prompts = {seq: [seq + 1] * (BLOCK_SIZE + 4) for seq in range(8)}

    def before() -> None:
        for seq, tokens in prompts.items():
            manager.add(seq, tokens)
            manager.commit(seq, len(tokens))

    def body() -> None:
        for seq in prompts:
            manager.free(seq)

    return Body(body, before)


def _release(make: Any, pool: int) -> Body:
    """Release 8 raw blocks, one by one, into an otherwise empty pool."""
    manager = make(pool, BLOCK_SIZE)
    blocks: list[int] = []

    def before() -> None:
        blocks[:] = [manager.alloc() for _ in range(8)]

    def body() -> None:
        for block in blocks:
            manager.release(block)

    return Body(body, before)


def _hit(make: Any, pool: int) -> Body:
    """Find a cached prompt of 64 blocks, whose owner is gone, in an otherwise empty pool, and free it."""
    manager = make(pool, BLOCK_SIZE)
    tokens = list(range(1, 64 * BLOCK_SIZE + 2))

    def body() -> None:
        manager.add(0, tokens)
        manager.commit(0, len(tokens))
        manager.free(0)

    return Body(body)


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

    return Body(body)


def _first_miss(make: Any, at: int) -> Body:
    """Look up a prompt of PROMPT blocks, all of them cached from 0 to `at`, where it differs."""
    manager, tokens = _cached(make, PROMPT)
    tokens[at * BLOCK_SIZE] = 60_000

    def body() -> None:
        for _ in range(4):
            manager.match(tokens)

    return Body(body)


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

    return Body(body)


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

    return Body(body)


BODIES: dict[str, Callable[[Any, int], Body]] = {
    "allocate": _allocate,
    "append": _append,
    "wide": _wide,
    "free": _free,
    "release": _release,
    "hit": _hit,
    "look_up": _look_up,
    "first_miss": _first_miss,
    "step_batch": _step_batch,
    "queue": _queue,
}


def _table_memory(make: Any, width: int) -> list[float]:
    """[reported growth, traced growth] in bytes of the tables: one long sequence beside 63 short."""
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
    return [float(manager.table_bytes() - reported), float(grown)]


def _bodies(
    make: Any, name: str, sizes: tuple[int, ...], beat: Clock
) -> tuple[dict[int, Body], dict[int, str]]:
    """One for each size that is served, warmed up, and how others are refused.

    From the third on, sizes that would take too long are left out.
    """
    bodies: dict[int, Body] = {}
    refused: dict[int, str] = {}
    made, turn, last = 0.0, 0.0, 1
    for i, size in enumerate(sizes):
        if len(bodies) >= 2 and (made * size > MADE_S * last or turn * size > TURN_S * last):
            break
        start = time.perf_counter()
        try:
            with beat(i):
                body = BODIES[name](make, size)
                made, start = time.perf_counter() - start, time.perf_counter()
                body.before()
                body.timed()
                turn, last = time.perf_counter() - start, size
        except ContractError as error:
            refused[size] = _answer(error)
        else:
            bodies[size] = body
    return bodies, refused


def _answer(error: ContractError) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST].removesuffix(": ")


def _words(refused: dict[int, str]) -> str:
    """Each reason once, behind its sizes."""
    sizes: dict[str, list[str]] = {}
    for size, why in refused.items():
        sizes.setdefault(why, []).append(str(size))
    return "; ".join(f"{', '.join(of)}: {why}" for why, of in sizes.items())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """No threads in torch: on a busy machine each large operation waits milliseconds for them."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if torch:
            torch.set_num_threads(threads)


def _seconds(make: Any, name: str, body: Body) -> float:
    """Of one round; of a program out of process inside it, if it has `run`."""
    body.before()
    if isinstance(make, RemoteFactory) and name != "queue":  # a step depends on the answer to the last one
        try:
            return make.timed(body.timed)[1]
        except Unserved:
            pass  # nothing was done
    start = time.perf_counter()
    body.timed()
    return time.perf_counter() - start


def measure_growth(make: Any, name: str, sizes: tuple[int, ...], beat: Clock = no_clock) -> Growth:
    """What the operation `name` costs at these sizes.

    `beat` is entered with the index of a size while that one is set up, and with their number while
    they are timed.
    """
    if name == "table_memory":
        return Growth({size: _table_memory(make, size) for size in sizes})
    with _one_thread():
        bodies, refused = _bodies(make, name, sizes, beat)
        times: dict[int, list[float]] = {size: [] for size in bodies}
        gc.collect()
        gc.disable()
        try:
            with beat(len(sizes)):
                for _ in range(ROUNDS):
                    for size in [s for s in bodies if s not in refused]:
                        try:
                            times[size].append(_seconds(make, name, bodies[size]))
                        except ContractError as error:  # one that leaks has no room after some rounds
                            refused[size] = _answer(error)
        finally:
            gc.enable()
    return Growth({size: of for size, of in times.items() if size not in refused}, _words(refused))

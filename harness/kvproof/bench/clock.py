"""The machine's speed at this moment, and quiet around a measured cell."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvproof.stats import median

CALIBRATION_RUNS = 9
CALIBRATION_TURNS = 4000


def calibrate(count: int = CALIBRATION_RUNS) -> float:
    """Nanoseconds of one turn of a fixed pure-Python loop: the median of `count` runs of 4,000 turns.

    A turn writes and reads a dictionary of 256 keys and grows a list. Times divided by it
    compare between machines, and between moments of a shared one, far better than nanoseconds.
    """
    runs = []
    for _ in range(count):
        start = time.perf_counter_ns()
        slots: dict[int, int] = {}
        grown: list[int] = []
        for i in range(CALIBRATION_TURNS):
            slots[i & 255] = i
            grown.append(slots[i & 255] + 1)
            if i & 15 == 0:
                grown.pop()
        runs.append((time.perf_counter_ns() - start) / CALIBRATION_TURNS)
    return median(runs)


def interrupted() -> int:
    """How often this thread has had its processor taken away; 0 always where that is not counted.

    A thread that waits, or sleeps, gives it away and is not counted.
    """
    if sys.platform == "linux":
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    return 0


def waited() -> float:
    """Seconds that this thread could have run and had no processor; 0 always where that is not counted."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside: one collection, then freeze and disable; undone at the end.

    Enter it after the set-up of a cell, so that a collection never walks the subject's state
    within a timed round. What a process has frozen before stays so.
    """
    was, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if was:
            gc.enable()

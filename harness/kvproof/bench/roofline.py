"""How fast memory is here and now, and how often inputs must change for the cache to be cold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

PROBE_BYTES = 256 << 20
"""Read by the probe on a CPU; a device copies four times as much."""
UNKNOWN_CACHE = 64 << 20
"""Taken for the last-level cache of a CPU that does not say."""
TRIES = 4
"""Reads of each way to read, before the faster is taken."""
SLACK = 1.25
"""A time this much under the floor is not believed: the probe itself is no perfect reader."""


def cache_bytes(device: str) -> int:
    """Bytes of the last-level cache: L2 of a GPU, the largest that Linux names for core 0 of a CPU."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    found = [UNKNOWN_CACHE // 1024]
    sizes = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    if sizes:
        found = [int(text[:-1]) for p in sizes if (text := p.read_text().strip()).endswith("K")] or found
    return max(found) * 1024


def rotations(kv_bytes: int, device: str) -> int:
    """How many sets of inputs in turn let each find the cache cold: 2 caches between two uses, a GPU 5."""
    apart = (5 if device == "cuda" else 2) * cache_bytes(device)
    return 1 if kv_bytes >= apart else -(-apart // kv_bytes) + 1


def probe(device: str) -> tuple[str, int, Callable[[], Any]]:
    """What is read as fast as the machine can: (its name, bytes moved by a call, the call).

    On a CPU with torch's threads the largest of 32 Mi integers or the sum of the same memory as float32,
    whichever is faster here: without vector instructions one of them alone is slower than memory. On a GPU
    a copy of 1 GiB, whose bytes count twice.
    """
    if device == "cuda":
        source = torch.ones(PROBE_BYTES * 4 // 8, dtype=torch.int64, device=device)
        target = torch.empty_like(source)
        return "copy", 2 * PROBE_BYTES * 4, lambda: target.copy_(source)
    numbers = torch.ones(PROBE_BYTES // 4)
    words = numbers.view(torch.int64)
    readers: tuple[Callable[[], Any], ...] = (words.amax, numbers.sum)
    return "read", PROBE_BYTES, min(readers, key=lambda read: min(_seconds(read) for _ in range(TRIES)))


def _seconds(read: Callable[[], Any]) -> float:
    start = perf_counter()
    read()
    return perf_counter() - start

"""Is a time on a GPU that of a cold L2? Asserted with a flush, for steps that the L2 could hold.

What is timed goes round more inputs than five L2 hold. Here the same call is timed after a flush and on one
input again and again: where these two differ, the time has to be the cold one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kvproof.bench import roofline, stream
from kvproof.bench.subject import Wrong

WARM = 0.8
"""Warm and cold are told apart where a warm call takes less than this part of a cold one."""


class Flush:
    """Twice the last-level cache, written and then read: what follows finds clean lines of others there."""

    def __init__(self, device: str, cache: int) -> None:
        self.cache, self.count = cache, 0
        self.buffer = torch.zeros(2 * cache // 4, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self.buffer.add_(1)
        self.seen = torch.aminmax(self.buffer)

    def wrote(self, times: int) -> None:
        """Raises Wrong if the buffer has not been written exactly so often since the last call of this."""
        self.count += times
        low, high = (int(x) for x in torch.aminmax(self.buffer))
        if low != self.count or high != self.count:
            raise Wrong(f"the flush of the L2 wrote {low} to {high} times, not {self.count}")

    @property
    def least_bytes(self) -> int:
        """Moved to and from memory by a flush, at least: six caches, less what three passes can hit."""
        return 3 * self.cache


@dataclass(frozen=True)
class Coldness:
    """Seconds of a call after a flush, of a call on the same input again, and of the flush alone."""

    flushed: float
    warm: float
    flush: float

    def wrong(self, seconds: float, flush: Flush, bandwidth: float) -> str:
        """Why `seconds` is not the time of a call that finds a cold L2; "" where nothing speaks against it.

        Args:
            bandwidth: bytes a second, the fastest copy of this run.
        """
        least = flush.least_bytes / (bandwidth * roofline.SLACK)
        if self.flush < least:
            return f"a flush of the L2 took {self.flush * 1e6:.3g} us, its bytes alone take {least * 1e6:.3g}"
        if self.warm < WARM * self.flushed and seconds < (self.warm + self.flushed) / 2:
            return (
                f"warm: {seconds * 1e6:.3g} us, after a flush {self.flushed * 1e6:.3g} us, "
                f"on the same input again {self.warm * 1e6:.3g} us"
            )
        return ""


def measure(call: stream.Call, turns: int, graph: bool, flush: Flush) -> Coldness:
    """Time the call cold and warm, each way as the rounds are timed.

    A flush between two events would be in their time: flushes alone are taken off flushes and calls.

    Raises:
        Wrong: the flush did not write what it should have.
    """

    def between(body: Callable[[int], Any], flushes: int) -> float:
        def launch() -> None:
            for n in range(stream.CALLS):
                body(n)

        run, before = stream.replayed(launch, graph)
        seconds = stream.device_seconds(run)
        flush.wrote(flushes * (before + 2) * stream.CALLS)
        return seconds / stream.CALLS

    def flush_and_call(n: int) -> Any:
        flush()
        return call(n % turns)

    both = between(flush_and_call, 1)
    alone = between(lambda _: flush(), 1)
    return Coldness(both - alone, between(lambda _: call(0), 0), alone)

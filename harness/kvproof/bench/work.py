"""What a timed cell is: work set up for one subject, a call a round, each result checked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from kvproof.bench.subject import Wrong

Rounds: TypeAlias = Generator[Callable[[], Any], Any, None]
"""Yields the call of the next round and is sent its result, which it checks outside the timing."""

READ = (list, np.ndarray, tuple, array, memoryview)
"""Hold their values."""
MAX_ROUNDS = 30
"""More rounds than any cell is run for: pools are made to last them."""


@dataclass(frozen=True)
class Work:
    """A cell set up for one subject: a round's nanoseconds / `per` is the cost of one `unit`.

    counted: exact counters of its first round, filled in when that has been checked.
    recheck: to be called when the rounds are over; checks what was kept of them. Raises Wrong.
    """

    unit: str
    per: int
    rounds: Rounds
    counted: dict[str, float]
    recheck: Callable[[], None]


def read(answer: Any) -> Any:
    """A table or slots, as whoever needs them has them: what finds its values when it is read does so now.

    To be called within the time of the call.
    """
    if type(answer) in READ:
        return answer
    return np.asarray(answer) if hasattr(answer, "__array__") else list(answer)


def expect(what: str, got: int, expected: int, slack: int = 0) -> None:
    """Raises Wrong if `got` is not within expected..expected + slack."""
    if not expected <= got <= expected + slack:
        raise Wrong(f"{what} is {got}, expected {expected}{f' to {expected + slack}' if slack else ''}")

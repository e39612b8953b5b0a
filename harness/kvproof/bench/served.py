"""What a trace served by a scheduler gives: the price of a step, the counts, and their development."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvproof.stats import quantiles

SERIES = ("virtual_s", "running", "waiting", "free_blocks", "hit_tokens", "waste")
POINTS = 2000
"""A series is thinned to at most so many points."""
TAILS = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a step of the model: a constant, and so much a token or row.

    step: whatever is computed. prefill: a token of a row that computes several, or a prompt's last one.
    decode: a row that computes the token sampled last. context: a position that a row reads.
    """

    step: float
    prefill: float
    decode: float
    context: float

    def __str__(self) -> str:
        return (
            f"ms a step = {self.step:g} + {self.prefill:g} a prefill token + {self.decode:g} a decode row "
            f"+ {self.context:g} a context token read"
        )


class Series:
    """Points over time; once there are too many, every second one goes and fewer are kept."""

    def __init__(self) -> None:
        self.points: list[tuple[float, ...]] = []
        self._every = 1
        self._seen = 0

    def add(self, *point: float) -> None:
        if self._seen % self._every == 0:
            self.points.append(point)
            if len(self.points) > POINTS:
                self.points = self.points[::2]
                self._every *= 2
        self._seen += 1


@dataclass
class Served:
    """One scheduler's pass over a trace; times are of the virtual clock unless said.

    nanoseconds: of this machine, in plan and feed of each step and in the submits before it.
    refused: requests that were refused or rejected.
    asked_tokens, hit_tokens: prompt tokens of the requests that started, and those found in the cache
        at their first start, full blocks unless `partial`. ceiling_tokens: in a cache without end.
    computed_tokens, recomputed_tokens: positions planned, and those computed once already.
    first_s, between_s: a request's time to its first token, and mean time from one token to the next.
    preemptions: of each request that was preempted.
    waste: (allocated slots - live tokens) / allocated slots after each step; a shared block counts
        once, a token is live when its KV is computed.
    stopped: it was too slow, and the requests left were aborted.
    invalid: what was wrong, empty if nothing.
    """

    requests: int
    finished: int = 0
    refused: int = 0
    nanoseconds: array[int] = field(default_factory=lambda: array("q"))
    virtual_s: float = 0.0
    asked_tokens: int = 0
    hit_tokens: int = 0
    ceiling_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    preemptions: dict[int, int] = field(default_factory=dict)
    waste: array[float] = field(default_factory=lambda: array("d"))
    most_running: int = 0
    series: Series = field(default_factory=Series)
    stopped: bool = False
    invalid: str = ""

    def counters(self) -> dict[str, float]:
        """Everything as one number each."""
        hits, asked = self.hit_tokens, max(self.asked_tokens, 1)
        return {
            "requests": self.requests,
            "finished": self.finished,
            "refused": self.refused,
            "steps": len(self.nanoseconds),
            "virtual_s": self.virtual_s,
            "host_s": sum(self.nanoseconds) / 1e9,
            "host_step_p99_us": quantiles(self.nanoseconds, (0.99,))[0] / 1e3,
            **_tails("ttft_{}_s", self.first_s, 1),
            **_tails("tpot_{}_ms", self.between_s, 1e3),
            "most_running": self.most_running,
            "preemptions": sum(self.preemptions.values()),
            "most_preemptions": max(self.preemptions.values(), default=0),
            "computed_tokens": self.computed_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "recomputed_share": self.recomputed_tokens / max(self.computed_tokens, 1),
            "waste_mean": sum(self.waste) / max(len(self.waste), 1),
            "waste_max": max(self.waste, default=0.0),
            "hit_rate": hits / asked,
            "ceiling": self.ceiling_tokens / asked,
        }


def _tails(name: str, values: Sequence[float], scale: float) -> Mapping[str, float]:
    if not values:
        return {}
    found = quantiles(values, tuple(TAILS.values()))
    return {name.format(tail): value * scale for tail, value in zip(TAILS, found, strict=True)}

"""What tests of the benchmark begin with: small cells, subjects on the stand-in, one cell measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvproof.bench.matrix import Point
from kvproof.bench.measure import Job
from kvproof.bench.subject import Subject
from kvproof.records import Sample
from kvproof.selftest import bench_standin as standin

ADAPTER = str(Path(standin.__file__)) + ":make"
SMALL: dict[str, dict[str, Any]] = {
    "decode_step": {"sequences": 5, "caching": True, "order": "changing", "form": "list"},
    "admit_cold": {"tokens": 70, "form": "array"},
    "admit_prefix": {"tokens": 64, "cached": 1.0, "form": "list"},
    "free": {"tokens": 70, "caching": False},
    "fork": {"tokens": 70},
    "batch": {"sequences": 3, "blocks": 4, "order": "changing"},
    "pool": {"blocks": 256},
    "evict": {"blocks": 256, "prompt_blocks": 16},
}


def subject(manager: Callable[[int, int], Any] = standin.Standin, **more: Any) -> Subject:
    return Subject(getattr(manager, "__name__", "?"), manager, 16, **more)


def full(manager: Callable[[int, int], Any] = standin.Standin) -> Subject:
    return subject(manager, make_uncached=standin.Uncached)


def plain_pedantic(target: Any, setup: Any, teardown: Any, rounds: int) -> list[float]:
    """What pytest-benchmark does with these arguments, with a clock that counts."""
    for _ in range(rounds):
        arguments, _options = setup()
        target(*arguments)
        teardown(*arguments)
    return [1e-6 * (i + 1) for i in range(rounds)]


def measured(*subjects: Subject, point: Point, budget_s: float = 0.001) -> list[Sample]:
    samples: list[Sample] = []
    Job(subjects, [point], budget_s, samples.append).measure(point, plain_pedantic)
    return samples

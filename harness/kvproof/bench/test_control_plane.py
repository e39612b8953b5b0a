"""Every point of the matrix as one benchmark of pytest-benchmark, run from `kvproof bench`."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.bench.measure import Timed

PLUGIN = "kvproof-bench-job"
"""Name under which the running job is registered; without it there is nothing to measure."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    job = metafunc.config.pluginmanager.get_plugin(PLUGIN)
    points = job.points if isinstance(job, Timed) else []
    metafunc.parametrize("point", points, ids=[str(p) for p in points])


def test_point(benchmark: Any, point: Any, request: pytest.FixtureRequest) -> None:
    job = request.config.pluginmanager.get_plugin(PLUGIN)
    assert isinstance(job, Timed)

    def pedantic(target: Any, **options: Any) -> list[float]:
        benchmark.pedantic(target, **options)
        seconds: list[float] = benchmark.stats.stats.data
        return seconds

    job.measure(point, pedantic)

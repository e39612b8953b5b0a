"""Timed points as one run of pytest-benchmark in this process."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from kvproof.bench.measure import Timed
from kvproof.bench.test_control_plane import PLUGIN


class _Bridge:
    """Hands the job to the in-process pytest run, and keeps what failed there."""

    def __init__(self, job: Timed) -> None:
        self.job = job
        self.failures: list[str] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self.job, PLUGIN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = report.longreprtext.strip().splitlines()
            self.failures.append(f"{report.nodeid.split('::')[-1]}: {lines[-1] if lines else 'failed'}")


NOT_OURS = ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_XDIST_WORKER")
"""Neither the user's pytest settings nor other installed plugins take part; in a process of pytest-xdist,
pytest-benchmark would not measure."""


def run_timed(job: Timed) -> list[str]:
    """One pytest-benchmark run in this process; returns what failed outside the subjects."""
    bridge = _Bridge(job)
    here = Path(__file__).parent
    arguments = [str(here / "test_control_plane.py"), f"--rootdir={here}", "-c", str(here / "pytest.ini")]
    arguments += ["--noconftest", "-p", "no:cacheprovider", "-p", "pytest_benchmark.plugin", "-s", "-q"]
    before = {k: os.environ.pop(k, None) for k in NOT_OURS}
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = pytest.main(arguments, plugins=[bridge])
    finally:
        del os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
        os.environ.update({k: v for k, v in before.items() if v is not None})
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return [f"the timed cells did not run: {said.getvalue().strip()[-500:]}"]
    return bridge.failures

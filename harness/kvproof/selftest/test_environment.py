"""What a run says of its machine: measured or read, and nothing where neither can be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvproof import environment
from kvproof.bench import tables
from kvproof.records import Header


def test_what_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("psutil.cpu_freq", lambda: None)
    found = environment.describe()
    nothing = (found.commit, found.dirty, found.gpu, found.compiler, found.cpu_mhz)
    assert nothing == (None,) * 5
    assert (found.copy_gbps, found.busy_cores) == (None, None), "of a benchmark"
    assert {"NVIDIA GPU", "C++ compiler"} <= set(found.missing)


def test_a_checkout_with_changes_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=b", *words], check=True
        )

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
    assert environment.describe().dirty is False
    (tmp_path / "new").touch()
    assert environment.describe().dirty is True


def test_the_memory_rate_is_that_of_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(environment, "COPIED", 1_000_000)
    assert environment.describe(bench=True).copy_gbps == 0.0
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) / 1e4)
    assert environment.describe(bench=True).copy_gbps == 20.0


@pytest.mark.parametrize(
    ("percent", "cores", "said"),
    [(25.0, 2, ""), (26.0, 2, "other programs used 0.5 of 2 cores when this run began"), (9.0, 64, ""),
     (50.0, 64, "other programs used 32.0 of 64 cores when this run began")],
)  # fmt: skip
def test_a_busy_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, percent: float, cores: int, said: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr("psutil.cpu_percent", lambda seconds: percent if seconds else 0.0)
    found = environment.describe(bench=True)
    assert found.busy_cores == pytest.approx(percent / 100 * cores)
    assert found.busy() == said
    header = Header(what="bench", implementation="x", seed=0, started="", command="", environment=found)
    assert (said or "GB/s.") in tables.markdown(header, [], [])

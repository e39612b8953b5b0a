"""What is timed where a cost must not grow, and sizes that cannot be measured."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.conformance.growing import growing
from kvproof.records import Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import session_of
from kvproof.selftest.rogues import Bare
from kvproof.subjects import find, growth
from kvproof.subjects.host import Worker

SUBJECTS = """
import time

from kvproof.contract import Refused
from kvproof.selftest.rogues import Bare


def stuck(num_blocks, block_size):
    if num_blocks >= 4096:
        time.sleep(3600)
    return Bare(num_blocks, block_size)


def small(num_blocks, block_size):
    if num_blocks > 1024:
        raise Refused("at most 1024 blocks")
    return Bare(num_blocks, block_size)
"""
SIZES = (256, 1024, 4096, 16384)


@pytest.fixture
def subjects(tmp_path: Path) -> Path:
    path = tmp_path / "subjects.py"
    path.write_text(SUBJECTS, encoding="utf-8")
    return path


def test_free_is_timed_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    class Slow(Bare):
        def add(self, seq: int, tokens: list[int]) -> int:
            nonlocal now
            now += 100
            return super().add(seq, tokens)

        def free(self, seq: int) -> None:
            nonlocal now
            now += 1
            super().free(seq)

    monkeypatch.setattr(growth, "time", SimpleNamespace(perf_counter=lambda: float(now)))
    monkeypatch.setattr(growth, "MADE_S", 1e9)
    monkeypatch.setattr(growth, "TURN_S", 1e9)
    measured = growth.measure_growth(Slow, "free", SIZES)
    assert measured.times == {size: [8.0] * growth.ROUNDS for size in SIZES}
    assert not measured.left_out


def test_torch_has_one_thread_while_it_is_timed_and_its_own_again_afterwards() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch, so no threads of torch")
    import torch

    threads = set()

    class Watching(Bare):
        def free(self, seq: int) -> None:
            threads.add(torch.get_num_threads())
            super().free(seq)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        growth.measure_growth(Watching, "free", SIZES)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert threads == {1}


def test_refused_sizes_are_left_out_and_named(subjects: Path) -> None:
    session = session_of(InProcess(f"{subjects}:small"))
    growing(session, "free", "KVP-POOL-007", SIZES, 99.0, "the pool")
    (result,) = session.results
    assert result.verdict is Verdict.PASS
    assert re.search(r"\(256: \d+ us, 1024: \d+ us\);", result.got), result.got
    assert result.got.endswith("; left out: 4096, 16384: Refused: at most 1024 blocks")


def test_fewer_than_two_sizes_are_no_growth(subjects: Path) -> None:
    session = session_of(InProcess(f"{subjects}:small"))
    with pytest.raises(pytest.skip.Exception):
        growing(session, "free", "KVP-POOL-007", SIZES[1:], 99.0, "the pool")
    (result,) = session.results
    assert result.verdict is Verdict.UNSUPPORTED
    assert result.reason.startswith(
        "fewer than two sizes can be set up: 4096, 16384: Refused: at most 1024 blocks"
    )


def test_a_size_that_is_refused_after_some_rounds_is_left_out() -> None:
    class Leaking(Bare):
        def free(self, seq: int) -> None:
            if len(self.pool) > 4000:
                super().free(seq)
            else:
                self.tables.pop(seq)

    measured = growth.measure_growth(Leaking, "free", (20, 64, 8192, 16384))
    assert set(measured.times) == {8192, 16384}
    assert measured.left_out == "20, 64: OutOfBlocks"
    assert {len(of) for of in measured.times.values()} == {growth.ROUNDS}


def test_sizes_that_are_not_set_up_in_time_are_left_out(
    subjects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproof.subjects.host.GROWTH_LIMIT", 2.0)
    with Worker(find(f"{subjects}:stuck"), call_limit=2.0) as worker:
        measured: Any = worker.growth("free", SIZES)
        assert set(measured.times) == {256, 1024}
        assert measured.left_out == "4096: not set up within 2 s"
        assert worker.growth("free", SIZES[1:]) == growth.Growth({}, "4096: not set up within 2 s")

"""Real processes: a rank is killed or stopped anywhere in a step; survivors say who, agree, and go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import Any

import pytest

from kvproof.selftest.rank_process import PLAN, main

dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP"),
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="torch without gloo"),
]
POOLS = (20, 23, 19, 20, 25, 20, 20, 21)
LIMIT = 60.0
FORKING: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
FORKING.set_forkserver_preload(["kvproof_impls.reference.processes", "kvproof.selftest.rank_process"])
CASES = [
    (4, 2, "prepared", "SIGKILL", 3),
    (4, 0, "driver between commits", "SIGKILL", 3),
    (2, 0, "driver before commits", "SIGKILL", 1),
    (3, 1, "before commit", "SIGSTOP", 2),
    (3, 0, "driver between commits", "SIGSTOP", 3),
]
"""World, rank, when, how, epoch."""


def run(world: int, fault: dict[str, Any], timeout: float) -> dict[int, dict[str, Any]]:
    """What each rank that is not killed says in the end; a stopped one goes on when the others are done."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started = {}
    for rank in range(world):
        told = {"rank": rank, "world": world, "port": store.port, "blocks": POOLS[rank]}
        told |= {"fault": fault, "timeout": timeout}
        here, there = FORKING.Pipe(duplex=False)
        process = FORKING.Process(target=main, args=(told, there), daemon=True)
        process.start()
        there.close()
        started[rank] = process, here
    until = time.monotonic() + LIMIT
    found: dict[int, dict[str, Any]] = {}
    faulty = fault.get("rank", -1)
    try:
        for rank in sorted(started, key=lambda r: r == faulty):
            process, here = started[rank]
            if rank == faulty and fault["signal"] == "SIGSTOP":
                os.kill(process.pid, signal.SIGCONT)
            assert here.poll(max(until - time.monotonic(), 1)), f"rank {rank} says nothing: it hangs"
            if rank == faulty and fault["signal"] == "SIGKILL":
                process.join(LIMIT)
                assert process.exitcode == -signal.SIGKILL
            else:
                found[rank] = here.recv()
    finally:
        for process, _ in started.values():
            process.kill()
            process.join()
    return found


def expected_tokens() -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for step in PLAN:
        for name, seq, *more in step:
            if name == "add":
                tokens[str(seq)] = list(more[0])
            elif name == "append":
                tokens[str(seq)] += more[0]
            elif name == "free":
                del tokens[str(seq)]
    return tokens


@pytest.mark.parametrize("world", [1, 4])
def test_without_a_fault_all_ranks_end_alike(world: int) -> None:
    found = run(world, {}, 20)
    assert len(found) == world
    assert {one["epoch"] for one in found.values()} == {len(PLAN)}
    assert len({one["digest"] for one in found.values()}) == 1
    assert all(one["tokens"] == expected_tokens() and not one["lost"] for one in found.values())
    for rank, one in found.items():
        assert all(0 <= b < POOLS[rank] for table in one["tables"].values() for b in table)


@pytest.mark.parametrize(("world", "rank", "when", "how", "epoch"), CASES)
def test_survivors_agree_and_go_on(world: int, rank: int, when: str, how: str, epoch: int) -> None:
    timeout = 2.0 if how == "SIGSTOP" else 10.0
    begun = time.monotonic()
    found = run(world, {"rank": rank, "when": when, "signal": how, "epoch": epoch}, timeout)
    assert time.monotonic() - begun < LIMIT
    stopped = found.pop(rank, None)
    assert sorted(found) == [r for r in range(world) if r != rank]
    for one in found.values():
        assert one["lost"] == [rank], one
        assert one["epoch"] == len(PLAN)
        assert one["tokens"] == expected_tokens()
        assert rank not in one["members"]
        assert not one["behind"]
    assert len({one["digest"] for one in found.values()}) == 1
    if stopped is not None:
        assert stopped["behind"], "a rank that comes back is left behind, and knows it"

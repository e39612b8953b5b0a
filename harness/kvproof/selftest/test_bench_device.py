"""Clocks, throttling and the cold L2 of a GPU, with stand-ins that misbehave. Nothing here has a GPU."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")

from kvproof.bench import attention, cold, gpu_clocks, paged, stream  # noqa: E402
from kvproof.bench.attention import AttentionJob, Group  # noqa: E402
from kvproof.bench.gpu_clocks import Reading  # noqa: E402
from kvproof.bench.inputs import Inputs  # noqa: E402
from kvproof.bench.lanes import Lane  # noqa: E402
from kvproof.bench.matrix import Point  # noqa: E402
from kvproof.bench.subject import Wrong  # noqa: E402
from kvproof.records import Sample  # noqa: E402

SHAPE = paged.Shape(tokens=32, batch=1, query_heads=2, kv_heads=1, head_dim=16, dtype="fp32")
GOOD = Reading(1980, 3201, 400, 1980, 0)
CACHE = 1 << 20
RATE = 1e12
FELL = "the SM clock went from 1980 to 1600 MHz over the rounds"


def reading(sm: float = 1980, reasons: int = 0) -> Reading:
    return Reading(sm, 3201, 400, 1980, reasons)


def run(readings: Sequence[Reading | None], absent: str = "", probe: Reading | None = GOOD) -> Sample:
    """One lane beside the probe whose rounds had these clocks, 1 ms each; the probe's had good ones."""
    samples: list[Sample] = []
    clocks = gpu_clocks.Clocks("fake", lambda: None, absent)
    point = Point("attention", {"block_size": 16, "topology": "shuffled"})
    job = AttentionJob([], [], 0.0, samples.append, device="cuda", clocks=clocks)
    lanes = [Lane(attention.PROBE, point, 10**6, lambda _: None), Lane("x", point, 10, lambda _: None)]
    told = {attention.PROBE: iter([probe] * len(readings)), "x": iter(readings)}
    for lane in lanes:
        lane.rounds = len(readings)
        lane.body = lambda name=lane.name: stream.Round([], 1e-3, next(told[name]))

    def pedantic(target: Any, setup: Any, teardown: Any, rounds: int) -> list[float]:
        for _ in range(rounds):
            arguments, _ = setup()
            target(*arguments)
            teardown(*arguments)
        return [9.0] * rounds

    job._run(lanes, SHAPE, 1, pedantic)
    job._report(lanes, Group("attention", (point,)))
    (sample,) = samples
    return sample


def test_throttled_rounds_are_thrown_out_and_counted() -> None:
    sample = run([GOOD, GOOD, reading(reasons=0x40), reading(sm=1000), GOOD])
    assert (sample.rounds, sample.median) == (3, 1e3)
    assert sample.counters["discarded"] == pytest.approx(0.4)
    assert sample.counters["sm_mhz"] == 1980
    assert "2 rounds thrown out: hardware thermal slowdown" in sample.note


def test_too_few_rounds_left_are_no_number() -> None:
    sample = run([reading(reasons=0x08)] * 4 + [GOOD])
    assert sample.rounds == 0
    assert sample.note == "INVALID: 4 of 5 rounds throttled: hardware slowdown"


def test_clocks_that_drift_make_the_rounds_void() -> None:
    lower = reading(sm=1600)
    assert gpu_clocks.drifted([GOOD] * 4 + [lower] * 4) == FELL
    assert not gpu_clocks.drifted([GOOD, lower] * 4)
    assert not gpu_clocks.drifted([GOOD])
    sample = run([GOOD] * 3 + [lower] * 3, probe=None)
    assert sample.rounds == 0
    assert sample.note == f"INVALID: void: {FELL}"


def test_clocks_that_cannot_be_read_are_said() -> None:
    sample = run([None] * 4, absent="NVML: no such module")
    assert sample.rounds == 4
    assert "clocks and throttling not known: NVML: no such module" in sample.note
    assert not {"sm_mhz", "discarded"} & set(sample.counters)


def test_without_nvml_and_nvidia_smi_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", FakeDevice())
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib, "import_module", _absent)
    clocks = gpu_clocks.opened("cuda")
    assert clocks.read() is None
    assert clocks.absent == "NVML: ModuleNotFoundError: pynvml; nvidia-smi: FileNotFoundError: not installed"
    assert gpu_clocks.opened("cpu").absent == ""


def test_nvidia_smi_is_asked_by_uuid_with_the_name_its_driver_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def smi(command: list[str], **_: Any) -> Any:
        asked.append(command)
        if "clocks_event_reasons" in command[3]:
            raise subprocess.CalledProcessError(2, command)
        return SimpleNamespace(stdout="1410, 3201, 251.20, 1980, 0x0000000000000004\n")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", smi)
    now = [0.0]
    read = gpu_clocks._by_smi("GPU-1", lambda: now[0])
    assert read() == Reading(1410, 3201, 251.2, 1980, 4)
    assert read().throttled == "SM clock 1410 of 1980 MHz"
    assert len(asked) == 2  # one that failed, and one that both readings of this second share
    now[0] = 2.0
    read()
    assert len(asked) == 3
    assert asked[-1][1:3] == ["-i", "GPU-1"]


def _absent(name: str) -> Any:
    raise ModuleNotFoundError(name)


class FakeDevice:
    """torch.cuda whose time is what calls say it is; work of `stray` s may be left after the last event."""

    def __init__(self, stray: float = 0.0) -> None:
        self.now, self.host, self.stray = 0.0, 0.0, stray

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, _: int) -> Any:
        return SimpleNamespace(uuid="1")

    def synchronize(self) -> None:
        self.host += self.stray

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.now)
        event.elapsed_time = lambda end: (end.at - event.at) * 1e3
        return event


def coldness(monkeypatch: pytest.MonkeyPatch, flush_s: float, writes: bool = True) -> tuple[Any, cold.Flush]:
    """Of a call that takes 20 us on an input the L2 has not, and 5 us on the same one again."""
    device, last = FakeDevice(), [-1]
    monkeypatch.setattr(torch, "cuda", device)
    flush = cold.Flush("cpu", 1 << 10)
    flush.cache = CACHE
    whole = cold.Flush.__call__

    def flushed(self: cold.Flush) -> None:
        if writes:
            whole(self)
        last[0] = -1
        device.now += flush_s

    def call(turn: int) -> None:
        device.now += 5e-6 if turn == last[0] else 20e-6
        last[0] = turn

    monkeypatch.setattr(cold.Flush, "__call__", flushed)
    return cold.measure(call, 3, False, flush), flush


def test_a_time_of_a_warm_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found, flush = coldness(monkeypatch, 50e-6)
    assert found.flushed == pytest.approx(20e-6)
    assert found.warm == pytest.approx(5e-6)
    assert found.wrong(20e-6, flush, RATE) == ""
    assert found.wrong(6e-6, flush, RATE).startswith("warm: 6 us, after a flush 20 us")
    assert cold.Coldness(20e-6, 19e-6, 50e-6).wrong(19e-6, flush, RATE) == ""  # nothing to tell apart


def test_a_flush_that_does_not_flush_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found, flush = coldness(monkeypatch, 1e-6)
    assert found.wrong(20e-6, flush, RATE).startswith(
        "a flush of the L2 took 1 us, its bytes alone take 2.52"
    )
    with pytest.raises(Wrong, match="wrote 0 to 0 times, not 20"):
        coldness(monkeypatch, 50e-6, writes=False)


def test_work_behind_the_last_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setattr(torch, "cuda", device)
    monkeypatch.setattr(stream, "perf_counter", lambda: device.host)

    def launch() -> None:
        device.now += 0.01

    assert stream.device_seconds(launch) == pytest.approx(0.01)
    device.stray = 0.005
    with pytest.raises(
        Wrong, match="the device worked 5 ms longer than the caller's stream, which took 10 ms"
    ):
        stream.device_seconds(launch)


def test_a_round_on_a_gpu_renews_and_checks_some_turns() -> None:
    memory = paged.fill(SHAPE, 5, "cpu", 0)
    queries = [torch.zeros(1, 2, 16) for _ in range(5)]
    tables = paged.tables("shuffled", SHAPE, 5, 16, "cpu", 0)
    lane = Lane("x", Point("a", {}), 1, lambda _: None, Inputs(memory, queries, tables, 16))
    lane.renew(5, "cuda")
    assert list(lane.due) == [0, 1, 2, 3, 4]
    seen = set()
    for _ in range(40):
        lane.error = 0.0
        before = [q.clone() for q in queries]
        lane.renew(5, "cuda")
        changed = [n for n in range(5) if not torch.equal(before[n], queries[n])]
        assert changed == sorted(lane.due)
        seen |= set(changed)
        right = [(n, lane.inputs.exact("NHD", n, 0, slice(0, 2))[0][None].float()) for n in lane.due]  # type: ignore[union-attr]
        lane.check(SHAPE, right, part=(0, 1))
        with pytest.raises(Wrong):
            lane.check(SHAPE, [(n, out + 1) for n, out in right])
    assert len(seen) == 5

"""How one round of a kernel is run and timed: a call on a CPU, a graph between two events on a GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Call: TypeAlias = Callable[[int], Any]
"""Runs one step on the inputs of this turn and answers its outputs."""
Body: TypeAlias = Callable[[], tuple[list[tuple[int, Any]], float | None]]
"""A round: outputs by turn, and seconds of a call where the device has told them; else the caller's clock."""
CALLS = 10
"""At least so many calls of a round on a GPU."""


def body(call: Call, turns: int, device: str, graph: bool) -> Body:
    """A round of `call`, each on the next of `turns` inputs.

    On a GPU a round is at least CALLS calls and goes round all inputs, so that each finds a cold cache. It
    is replayed from a graph, twice: the first keeps the device busy while the second and its two
    events are enqueued, so that no gap of the host is in the time. What cannot be captured is launched
    twice in the same way.
    """
    if device == "cuda":
        return _device_body(call, turns, graph)
    count = iter(range(1 << 62))

    def on_host() -> tuple[list[tuple[int, Any]], None]:
        turn = next(count) % turns
        return [(turn, call(turn))], None

    return on_host


def _device_body(call: Call, turns: int, graph: bool) -> Body:
    cuda: Any = torch.cuda  # its classes have no types
    calls = turns * -(-CALLS // turns)
    outputs: list[Any] = [None] * turns

    def launch() -> None:
        for n in range(calls):
            outputs[n % turns] = call(n % turns)

    run = launch
    if graph:
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):  # allocations and builds of the first call stay out of the graph
            launch()
        cuda.current_stream().wait_stream(side)
        captured = cuda.CUDAGraph()
        with cuda.graph(captured):
            launch()
        run = captured.replay
    begin = cuda.Event(enable_timing=True)
    end = cuda.Event(enable_timing=True)

    def on_device() -> tuple[list[tuple[int, Any]], float]:
        run()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return list(enumerate(outputs)), begin.elapsed_time(end) / 1e3 / calls

    return on_device


def clocks() -> dict[str, float]:
    """SM and memory clock in MHz and power in W of GPU 0, as nvidia-smi tells them; empty without it."""
    names = {"clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz", "power.draw": "watts"}
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    command = [program, "-i", "0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return dict(zip(names.values(), map(float, said.split(",")), strict=True))
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}

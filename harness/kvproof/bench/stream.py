"""How one round of a kernel is run and timed: a call on a CPU, a graph between two events on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import torch

from kvproof.bench.gpu_clocks import Reading
from kvproof.bench.subject import Wrong

Call: TypeAlias = Callable[[int], Any]
"""Runs one step on the inputs of this turn and answers its outputs."""


class Round(NamedTuple):
    """What a round has told: on a CPU outputs only, the caller's clock has the time."""

    outputs: list[tuple[int, Any]]
    """By turn."""
    seconds: float | None = None
    """Of one call, by the device."""
    clocks: Reading | None = None


Body: TypeAlias = Callable[[], Round]
CALLS = 10
"""At least so many calls of a round on a GPU."""
STRAY, STRAY_S = 0.2, 1e-3
"""Work may go on behind the last event for this part of the round, or for this time, before it counts as
done elsewhere than on the caller's stream."""


def body(
    call: Call, turns: int, device: str, graph: bool, read: Callable[[], Reading | None] = lambda: None
) -> Body:
    """A round of `call`, each on the next of `turns` inputs.

    On a GPU a round is at least CALLS calls and goes round all inputs, so that each finds a cold cache. It
    is replayed from a graph, twice: the first keeps the device busy while the second and its two
    events are enqueued, so that no gap of the host is in the time. What cannot be captured is launched
    twice in the same way. `read` is asked for the clocks while the device works.
    """
    if device == "cuda":
        return _device_body(call, turns, graph, read)
    count = iter(range(1 << 62))

    def on_host() -> Round:
        turn = next(count) % turns
        return Round([(turn, call(turn))])

    return on_host


def replayed(launch: Callable[[], None], graph: bool) -> tuple[Callable[[], None], int]:
    """What runs the launches again, as one graph if they can be captured, and how often they ran for that."""
    if not graph:
        return launch, 0
    cuda: Any = torch.cuda  # its classes have no types
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):  # allocations and builds of the first call stay out of the graph
        launch()
    cuda.current_stream().wait_stream(side)
    captured = cuda.CUDAGraph()
    with cuda.graph(captured):
        launch()
    return captured.replay, 1


def device_seconds(run: Callable[[], None], working: Callable[[], Any] = lambda: None) -> float:
    """Seconds of the second of two runs by events on the current stream; `working` is called meanwhile.

    Raises:
        Wrong: the device went on working after the stream was done, so that the time is not that of the work.
    """
    cuda: Any = torch.cuda
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda.synchronize()
    run()
    begin.record()
    run()
    end.record()
    working()
    end.synchronize()
    seconds: float = begin.elapsed_time(end) / 1e3
    start = perf_counter()
    cuda.synchronize()
    stray = perf_counter() - start
    if stray > max(STRAY_S, STRAY * seconds):
        raise Wrong(
            f"the device worked {stray * 1e3:.3g} ms longer than the caller's stream, which took "
            f"{seconds * 1e3:.3g} ms"
        )
    return seconds


def _device_body(call: Call, turns: int, graph: bool, read: Callable[[], Reading | None]) -> Body:
    calls = turns * -(-CALLS // turns)
    outputs: list[Any] = [None] * turns

    def launch() -> None:
        for n in range(calls):
            outputs[n % turns] = call(n % turns)

    run, _ = replayed(launch, graph)

    def on_device() -> Round:
        seen: list[Reading | None] = []
        seconds = device_seconds(run, lambda: seen.append(read()))
        return Round(list(enumerate(outputs)), seconds / calls, seen[0])

    return on_device

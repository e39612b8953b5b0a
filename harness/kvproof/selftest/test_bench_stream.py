"""A round of the attention benchmark the way a GPU does it, on a fake one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")

from kvproof.bench import stream  # noqa: E402


class FakeCuda:
    """As much of torch.cuda as a round needs; an event is the number of calls so far."""

    def __init__(self) -> None:
        self.calls, self.captured = 0, False

    def current_stream(self) -> Any:
        return self

    Stream = current_stream

    def synchronize(self) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    @contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        yield

    @contextmanager
    def graph(self, _: Any) -> Iterator[None]:
        before = self.calls
        yield
        self.in_graph, self.calls, self.captured = self.calls - before, before, True

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(replay=lambda: setattr(self, "calls", self.calls + self.in_graph))

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802
        event = SimpleNamespace(at=0, synchronize=lambda: None)
        event.record = lambda: setattr(event, "at", self.calls)
        event.elapsed_time = lambda end: float(end.at - event.at)
        return event


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("turns", [1, 3, 19])
def test_a_round_on_a_gpu_goes_round_all_inputs(
    monkeypatch: pytest.MonkeyPatch, graph: bool, turns: int
) -> None:
    cuda = FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)

    def call(turn: int) -> int:
        cuda.calls += 1
        return turn

    round_ = stream.body(call, turns, "cuda", graph)
    outputs, seconds, _ = round_()
    assert [(turn, out) for turn, out in outputs] == [(n, n) for n in range(turns)]
    assert seconds == pytest.approx(1e-3)  # an event a call, one "millisecond" each
    assert cuda.captured is graph
    assert cuda.calls % turns == 0
    assert cuda.calls >= 2 * stream.CALLS

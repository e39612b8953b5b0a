"""One contender, or one control, of a group: its call, its rounds, and the check of what it answers."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvproof.bench import cold, gpu_clocks, paged, stream
from kvproof.bench.inputs import Inputs
from kvproof.bench.matrix import Point
from kvproof.bench.subject import Unsupported, Wrong
from kvproof.contract import BadInput

CHECKED = 4
"""Rows and heads of each output that are computed again, others in each round."""
RENEWED = 2
"""Turns of a round on a GPU whose inputs are new and whose outputs are checked, others in each round: which
they are a kernel cannot know, and all would take many times as long as what is timed."""


def why(error: Exception) -> str:
    """The note of a lane that has no number because of this."""
    if isinstance(error, Unsupported | BadInput):
        return f"unsupported: {error}"
    said = str(error).strip().partition("\n")[0]
    return f"INVALID: {said}" if isinstance(error, Wrong) else f"INVALID: {type(error).__name__}: {said}"


@dataclass
class Lane:
    """One contender, or one control, within a group."""

    name: str
    point: Point
    bytes: int
    call: stream.Call
    inputs: Inputs | None = None
    layout: str = "NHD"
    lse: bool = False
    prepared: bool = False
    graph: bool = True
    body: stream.Body | None = None
    rounds: int = 0
    begun: int = 0
    """Rounds that ran, with those of the warm-up."""
    seconds: list[float] = field(default_factory=list)
    result: stream.Round | None = None
    due: Sequence[int] = ()
    """Turns of this round with new inputs."""
    clocks: list[gpu_clocks.Reading] = field(default_factory=list)
    """Of the rounds that count, as far as they could be read."""
    throttled: list[str] = field(default_factory=list)
    """Of each round that was thrown out: why."""
    cold: cold.Coldness | None = None
    error: float = 0.0
    note: str = ""

    def renew(self, turns: int, device: str) -> None:
        """Change inputs of the next round, outside its time: on a CPU those of its one turn.

        On a GPU those of all turns at first, later of RENEWED.
        """
        self.due = [self.begun % turns]
        if device == "cuda":
            every = list(range(turns))
            self.due = secrets.SystemRandom().sample(every, min(RENEWED, turns)) if self.begun else every
        if self.inputs is not None:
            self.inputs.renew(self.due, self.layout, reorder=not self.prepared)
        self.begun += 1

    def check(
        self,
        shape: paged.Shape,
        outputs: list[tuple[int, Any]],
        some: int = CHECKED,
        part: tuple[int, int] | None = None,
    ) -> None:
        """Raises Wrong if an output is not what it must be.

        Args:
            some: rows and heads of each output that are compared.
            part: (k, n): of one output besides the k-th part, from 0, of n that are all of it.
        """
        if self.inputs is None:
            return
        outputs = [(turn, answer) for turn, answer in outputs if turn in self.due]
        wholly = secrets.randbelow(len(outputs)) if part else None
        for n, (turn, answer) in enumerate(outputs):
            out, lse = answer if isinstance(answer, tuple) else (answer, None)
            self._check_form("output", out, (shape.batch, shape.query_heads, shape.head_dim), shape)
            if self.lse:
                self._check_form("lse", lse, (shape.batch, shape.query_heads), shape)
            self.inputs.untouched(self.layout, turn)
            heads: list[tuple[int, int | slice]] = [
                (secrets.randbelow(shape.batch), secrets.randbelow(shape.query_heads)) for _ in range(some)
            ]
            if part and n == wholly:
                group = shape.query_heads // shape.kv_heads
                firsts = range(0, shape.query_heads, group)
                every = [(b, slice(h, h + group)) for b in range(shape.batch) for h in firsts]
                heads += every[part[0] :: part[1]]
            for b, h in heads:
                self._compare(shape, turn, b, h, out, lse)

    def _check_form(self, what: str, got: Any, size: tuple[int, ...], shape: paged.Shape) -> None:
        dtype = torch.float32 if what == "lse" else shape.query_dtype
        if not isinstance(got, torch.Tensor):
            raise Wrong(f"{what} is {type(got).__name__}, not {dtype} {list(size)}")
        if tuple(got.shape) != size or got.dtype is not dtype:
            raise Wrong(f"{what} is {got.dtype} {list(got.shape)}, not {dtype} {list(size)}")

    def _compare(
        self, shape: paged.Shape, turn: int, row: int, heads: int | slice, out: Any, lse: Any
    ) -> None:
        assert self.inputs is not None
        # Twice where the answers to check by are in float32 too, as large a part of fp32's tolerance.
        allowed = paged.tolerance(shape) * (1 if isinstance(heads, int) else 2)
        wanted, wanted_lse = self.inputs.exact(self.layout, turn, row, heads)
        self.error = max(self.error, paged.distance(out[row, heads], wanted))
        if not self.error <= allowed:
            raise Wrong(f"relative error {self.error:.2g} against exact attention, allowed are {allowed:.2g}")
        if self.lse:
            off = (lse[row, heads].double() - wanted_lse).abs() / wanted_lse.abs().clamp(min=1)
            worst = float(off.max())
            if not worst <= allowed:
                raise Wrong(f"lse is off by {worst:.2g} of itself, allowed are {allowed:.2g}")

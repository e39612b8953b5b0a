"""One contender, or one control, of a group: its call, its rounds, and the check of what it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from kvproof.bench import paged, stream
from kvproof.bench.matrix import Point
from kvproof.bench.subject import Unsupported, Wrong
from kvproof.contract import BadInput

CHECKED = 4
"""Rows of each output that are computed again in float64."""
Answers: TypeAlias = Callable[[int], tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]]
"""Of a turn: the rows and heads that are checked, and their exact outputs."""


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
    wanted: Answers | None
    prepared: bool = False
    graph: bool = True
    body: stream.Body | None = None
    rounds: int = 0
    seconds: list[float] = field(default_factory=list)
    result: Any = None
    first: dict[int, torch.Tensor] = field(default_factory=dict)
    error: float = 0.0
    note: str = ""

    def check(self, shape: paged.Shape, outputs: list[tuple[int, Any]]) -> None:
        """Raises Wrong if an output is not what it must be, or not what its first one was."""
        if self.wanted is None:
            return
        allowed = paged.tolerance(shape)
        for turn, out in outputs:
            expected = (shape.batch, shape.query_heads, shape.head_dim)
            if tuple(out.shape) != expected or out.dtype is not shape.query_dtype:
                raise Wrong(
                    f"answers {out.dtype} {list(out.shape)}, not {shape.query_dtype} {list(expected)}"
                )
            (rows, heads), exact = self.wanted(turn)
            self.error = max(self.error, paged.distance(out[rows, heads], exact))
            if self.error > allowed:
                raise Wrong(f"relative error {self.error:.2g} against float64, allowed are {allowed:.2g}")
            first = self.first.setdefault(turn, out.clone())
            if paged.distance(out.flatten(0, 1), first.flatten(0, 1)) > 2 * allowed:
                raise Wrong("a later round of the same input answers something else")


def answers(
    shape: paged.Shape,
    queries: Sequence[torch.Tensor],
    rows: Callable[[int, int, int], tuple[torch.Tensor, torch.Tensor]],
    seed: int,
) -> Answers:
    """Exact outputs of CHECKED rows and heads of each turn, drawn by the seed.

    rows: (turn, row, KV head) to the keys and values [tokens, dim] that are attended to.
    """
    generator = torch.Generator().manual_seed(seed)
    group, found = shape.query_heads // shape.kv_heads, []
    for turn, q in enumerate(queries):
        b = torch.randint(shape.batch, (CHECKED,), generator=generator)
        h = torch.randint(shape.query_heads, (CHECKED,), generator=generator)
        exact = [
            paged.exact(*rows(turn, i, j // group), q[i, j], shape.head_dim**-0.5)
            for i, j in zip(b.tolist(), h.tolist(), strict=True)
        ]
        found.append(((b.to(q.device), h.to(q.device)), torch.stack(exact)))
    return lambda turn: found[turn]

"""Kernels that would look fast in a careless benchmark: they leave work out, or keep what they saw."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.selftest.kernel_standin import Gather


class KeepsTheGathered(Gather):
    """Gathers a table's keys and values once, and attends to the copy from then on."""

    def __init__(self) -> None:
        self.copies: dict[int, Any] = {}

    def decode(self, q: Any, k: Any, v: Any, table: Any, lens: Any, scale: float) -> tuple[Any, None]:
        if table.data_ptr() not in self.copies:
            self.copies[table.data_ptr()] = k.clone(), v.clone(), table.clone()
        k, v, table = self.copies[table.data_ptr()]
        return super().decode(q, k, v, table, lens, scale)


class KeepsTheTable(Gather):
    """Reads a table once."""

    def __init__(self) -> None:
        self.copies: dict[int, Any] = {}

    def decode(self, q: Any, k: Any, v: Any, table: Any, lens: Any, scale: float) -> tuple[Any, None]:
        table = self.copies.setdefault(table.data_ptr(), table.clone())
        return super().decode(q, k, v, table, lens, scale)


class LeavesOutAHead(Gather):
    def decode(self, *given: Any) -> tuple[Any, None]:
        out, lse = super().decode(*given)
        out[:, 1] = 1.0
        return out, lse


class LeavesOutAHeadLater(LeavesOutAHead):
    """All heads in the warm-up, one less when it counts."""

    calls = 0

    def decode(self, *given: Any) -> tuple[Any, None]:
        self.calls += 1
        return Gather().decode(*given) if self.calls <= 2 else super().decode(*given)


class LeavesOutHalf(Gather):
    """Attends to every other position: the answer to random values is of the right size."""

    def decode(self, q: Any, k: Any, v: Any, table: Any, lens: Any, scale: float) -> tuple[Any, None]:
        return super().decode(q, k[:, ::2], v[:, ::2], table, lens // 2, scale)


class Writes(Gather):
    """Leaves queries whose answer it knows."""

    def decode(self, q: Any, *rest: Any) -> tuple[Any, None]:
        q.zero_()
        return super().decode(q, *rest)


class WrongLse(Gather):
    capabilities = frozenset({"lse"})

    def decode(self, q: Any, *rest: Any) -> tuple[Any, Any]:
        return super().decode(q, *rest)[0], torch.zeros(q.shape[:2])


class NoLse(Gather):
    capabilities = frozenset({"lse"})

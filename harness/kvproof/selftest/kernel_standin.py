"""A kernel of torch calls for the tests of the benchmark, and ways for it to be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812


class Gather:
    """Gathers the pages, then SDPA: right, and slow."""

    capabilities = frozenset[str]()
    layout = "NHD"
    limits: dict[str, Any] = {"dtypes": ["fp32", "bf16"], "devices": ["cpu", "cuda"]}  # noqa: RUF012

    def decode(
        self, q: Any, k_cache: Any, v_cache: Any, block_table: Any, seq_lens: Any, scale: float
    ) -> tuple[Any, None]:
        length, ids = int(seq_lens.max()), block_table.long()
        k, v = (
            (c[ids].flatten(1, 2)[:, :length] if self.layout == "NHD" else self._rows(c, ids, length))
            for c in (k_cache, v_cache)
        )
        q, k, v = q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
        return out[:, :, 0], None

    @staticmethod
    def _rows(cache: Any, ids: Any, length: int) -> Any:
        return cache[ids].transpose(2, 3).flatten(1, 2)[:, :length]


class HeadMajor(Gather):
    layout = "HND"


class Prepared(Gather):
    """Gathers once, outside the time."""

    capabilities = frozenset({"prepare"})

    def prepare(self, q: Any, *rest: Any) -> Callable[[Any], tuple[Any, None]]:
        return lambda queries: self.decode(queries, *rest)


class Shifted(Gather):
    """Reads the block behind the right one."""

    def decode(self, q: Any, k_cache: Any, v_cache: Any, block_table: Any, *rest: Any) -> tuple[Any, None]:
        return super().decode(q, k_cache, v_cache, (block_table + 1) % len(k_cache), *rest)


class Drifting(Gather):
    """Right for the first four calls."""

    calls = 0

    def decode(self, *given: Any) -> tuple[Any, None]:
        self.calls += 1
        out, lse = super().decode(*given)
        return (out if self.calls <= 4 else torch.full_like(out, float("nan"))), lse


class Idle(Gather):
    """Answers what it answered for these queries before, and reads no memory."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}

    def decode(self, q: Any, *rest: Any) -> tuple[Any, None]:
        if q.data_ptr() not in self.known:
            self.known[q.data_ptr()] = super().decode(q, *rest)
        return self.known[q.data_ptr()]  # type: ignore[no-any-return]


def make() -> Gather:
    return Gather()


def make_shifted() -> Shifted:
    return Shifted()


def make_head_major() -> HeadMajor:
    return HeadMajor()

"""Calls of paged attention with what float64 says of them, for the tests of the shim."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
TOLERANCE = {"fp32": 3e-6, "fp16": 3e-3, "bf16": 2.5e-2, "fp8_e4m3": 2.5e-2}


@dataclass
class Call:
    """A paged cache with NaN in every slot that is not in use, and queries for it."""

    dtype: str
    head_dim: int
    block_size: int
    kv_heads: int
    group: int
    lens: list[int]
    layout: str = "NHD"
    queries: list[int] | None = None

    def __post_init__(self) -> None:
        seed = torch.Generator().manual_seed(7)
        used = [-(-n // self.block_size) for n in self.lens]
        columns, blocks = max(used) + 1, sum(used) + 2
        order = torch.randperm(blocks, generator=seed).to(torch.int32)
        self.table = torch.full((len(used), columns), -1, dtype=torch.int32)
        caches = [torch.full((blocks, self.block_size, self.kv_heads, self.head_dim), math.nan) for _ in "kv"]
        for row, (n, length) in enumerate(zip(used, self.lens, strict=True)):
            self.table[row, :n], order = order[:n], order[n:]
            blocks_of, offsets = self._slots(row, length)
            for pool in caches:
                pool[blocks_of, offsets] = torch.randn(length, *pool.shape[2:], generator=seed)
        self.k, self.v = (pool.to(DTYPES[self.dtype]) for pool in caches)
        if self.layout == "HND":
            self.k, self.v = (x.transpose(1, 2).contiguous() for x in (self.k, self.v))
        self.seq_lens = torch.tensor(self.lens, dtype=torch.int32)
        counts = self.queries or [1] * len(self.lens)
        self.ends = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        shape = (sum(counts), self.kv_heads * self.group, self.head_dim)
        dtype = torch.bfloat16 if self.dtype == "fp8_e4m3" else DTYPES[self.dtype]
        self.q = torch.randn(*shape, generator=seed).to(dtype)
        self.scale = self.head_dim**-0.5

    def _slots(self, row: int, length: int) -> tuple[Any, Any]:
        """Blocks and offsets of the first tokens of a sequence."""
        at = torch.arange(length)
        return self.table[row].long()[at // self.block_size], at % self.block_size

    def run(self, subject: Any, **features: Any) -> tuple[Any, Any]:
        cache = (self.k, self.v, self.table, self.seq_lens, self.scale, self.layout)
        if self.queries is None:
            return subject.decode(self.q, *cache, **features)  # type: ignore[no-any-return]
        return subject.prefill(self.q, self.ends, *cache, **features)  # type: ignore[no-any-return]

    def expected(
        self,
        softcap: float = 0,
        alibi: Any = None,
        window: int = 0,
        k_scale: float = 1,
        v_scale: float = 1,
    ) -> tuple[Any, Any]:
        k, v = ((x.transpose(1, 2) if self.layout == "HND" else x).double() for x in (self.k, self.v))
        out, lse = self.q.double() * 0, torch.full(self.q.shape[:2], -math.inf, dtype=torch.float64)
        for row, length in enumerate(self.lens):
            mine = slice(int(self.ends[row]), int(self.ends[row + 1]))
            if not length or mine.start == mine.stop:
                continue
            keys, values = (x[self._slots(row, length)].repeat_interleave(self.group, 1) for x in (k, v))
            # [queries, tokens]: how far a token lies behind a query
            behind = torch.arange(length - mine.stop + mine.start, length)[:, None] - torch.arange(length)
            scores = torch.einsum("qhd,thd->qht", self.q[mine].double(), keys) * k_scale * self.scale
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            if alibi is not None:
                scores -= alibi.double()[:, None] * behind[:, None]
            hidden = (behind < 0) | ((behind >= window) if window else False)
            scores = scores.masked_fill(hidden[:, None], -math.inf)
            lse[mine] = scores.logsumexp(-1)
            out[mine] = torch.einsum("qht,thd->qhd", scores.softmax(-1), values) * v_scale
        return out, lse

    def check(self, subject: Any, **features: Any) -> None:
        out, lse = self.run(subject, **features)
        want, want_lse = self.expected(**features)
        assert torch.allclose(
            out.double(), want, atol=TOLERANCE[self.dtype] * max(1, want.abs().max()), rtol=0
        )
        assert torch.allclose(lse.double(), want_lse, atol=1e-5, rtol=0)

    def check_spoilt(self, subject: Any) -> None:
        """NaN in the values of each sequence's last token reaches the query of that token and no other."""
        want, _ = self.expected()
        values = self.v.transpose(1, 2) if self.layout == "HND" else self.v
        for row, length in enumerate(self.lens):
            last = length - 1
            values[int(self.table[row, last // self.block_size]), last % self.block_size] = math.nan
        out = self.run(subject)[0].double()
        own = self.ends[1:].long() - 1
        assert out[own].isnan().all()
        out[own] = want[own] = 0
        assert torch.allclose(out, want, atol=TOLERANCE[self.dtype], rtol=0)


def sparse(shape: tuple[int, ...]) -> Any:
    """A float16 tensor of zeros that takes memory only where it is written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    memory = mmap.mmap(-1, math.prod(shape) * 2, flags=flags)
    return torch.frombuffer(memory, dtype=torch.float16).view(shape)


def near_call() -> Call:
    """A small call in a small pool."""
    return Call("fp16", 64, 16, 1, 1, [40, 17])


def far_call() -> Call:
    """The same call with its blocks past 2^31 elements."""
    call = near_call()
    blocks = 2**31 // (16 * 64) + 8
    far = [sparse((blocks, 16, 1, 64)) for _ in "kv"]
    used = call.table[call.table >= 0].long()
    for pool, near in zip(far, (call.k, call.v), strict=True):
        pool[used + blocks - 8] = near[used]
    call.k, call.v = far
    call.table[call.table >= 0] += blocks - 8
    return call

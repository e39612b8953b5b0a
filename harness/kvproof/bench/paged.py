"""Inputs of a decode step over a paged cache: memory, block tables by topology, float64 answers.

One pair of flat buffers serves every block size, topology and layout: their contents are random, so any
view of them is a cache as good as another, and contiguous keys and values are one more view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
}
TOPOLOGIES = ("identity", "shuffled", "interleaved")
LARGEST_BLOCK = 256
"""Tokens; lengths are rounded up to it, so that one pool serves all smaller block sizes."""
CHUNK = 1 << 22
"""Elements drawn at random; the buffers are this chunk again and again, each time moved by another step."""


@dataclass(frozen=True)
class Shape:
    """One decode step: `batch` sequences of `tokens` positions each."""

    tokens: int
    batch: int
    query_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    """Of the cache; queries have the same, bf16 with fp8_e4m3."""

    @property
    def query_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.dtype == "fp8_e4m3" else DTYPES[self.dtype]

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that a step reads."""
        size: int = DTYPES[self.dtype].itemsize
        return 2 * self.batch * self.tokens * self.kv_heads * self.head_dim * size

    def moved(self, width: int) -> int:
        """Bytes a step cannot avoid: keys, values, queries, outputs, lengths, `width` table entries a row."""
        size: int = self.query_dtype.itemsize
        heads = 2 * self.batch * self.query_heads * self.head_dim * size
        return self.kv_bytes + heads + 4 * self.batch * (width + 1)

    @property
    def room(self) -> int:
        """Elements of one buffer that hold this step's keys, in blocks of any size."""
        return self.batch * -(-self.tokens // LARGEST_BLOCK) * LARGEST_BLOCK * self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Memory:
    """Flat buffers of keys and values for `rotations` steps on different inputs."""

    shape: Shape
    rotations: int
    keys: torch.Tensor
    values: torch.Tensor

    def cache(self, layout: str, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers as [blocks, block_size, kv_heads, dim] (NHD) or [blocks, kv_heads, block_size, dim]."""
        s = self.shape
        inner = (block_size, s.kv_heads) if layout == "NHD" else (s.kv_heads, block_size)
        k, v = (x.view(-1, *inner, s.head_dim) for x in (self.keys, self.values))
        return k, v

    def contiguous(self, rotation: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [batch, kv_heads, tokens, dim] of one rotation, no table between."""
        s = self.shape
        size = (s.batch, s.kv_heads, s.tokens, s.head_dim)
        length, at = math.prod(size), rotation * s.room
        k, v = (x[at : at + length].view(size) for x in (self.keys, self.values))
        return k, v


def fill(shape: Shape, rotations: int, device: str, seed: int) -> Memory:
    """Random normal keys and values; equal arguments give equal ones."""
    dtype, size = DTYPES[shape.dtype], shape.room * rotations
    generator = torch.Generator().manual_seed(seed)
    buffers = []
    for _ in "kv":
        base = torch.randn(min(size, CHUNK), generator=generator).to(dtype).to(device)
        whole = torch.empty(size, dtype=dtype, device=device)
        word = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
        bits, pattern = whole.view(word), base.view(word)
        for n, start in enumerate(range(0, size, CHUNK)):
            part = bits[start : start + CHUNK]
            # 7,919 rows on: no two chunks put the same token at the same place.
            by = (n * 7919 * shape.head_dim) % len(pattern)
            part[: len(pattern) - by].copy_(pattern[by : by + len(part)])
            part[len(pattern) - by :].copy_(pattern[: max(0, len(part) - len(pattern) + by)])
        buffers.append(whole)
    return Memory(shape, rotations, *buffers)


def tables(
    topology: str, shape: Shape, rotations: int, block_size: int, device: str, seed: int
) -> list[torch.Tensor]:
    """A block table int32 [batch, ceil(tokens / block_size)] for each rotation; no block is in two.

    identity: a sequence's blocks lie behind one another. shuffled: anywhere. interleaved: block i of
    every sequence, then block i + 1 of every sequence, as a batch that decodes together takes them.

    Raises:
        ValueError: an unknown topology.
    """
    width, batch = -(-shape.tokens // block_size), shape.batch
    every = torch.arange(rotations * batch * width, dtype=torch.int32)
    if topology == "shuffled":
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
        every = every[order]
    elif topology not in TOPOLOGIES:
        raise ValueError(f"topology {topology!r}: allowed are {', '.join(TOPOLOGIES)}")
    if topology == "interleaved":
        parts = every.view(rotations, width, batch).transpose(1, 2)
    else:
        parts = every.view(rotations, batch, width)
    return [part.contiguous().to(device) for part in parts]


def exact(keys: torch.Tensor, values: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of one query [dim] to keys and values [tokens, dim], in float64."""
    return exact_lse(keys, values, query, scale, torch.float64)[0]


def exact_lse(
    keys: torch.Tensor, values: torch.Tensor, queries: torch.Tensor, scale: float, precision: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of queries [..., dim] to keys and values [tokens, dim], and its lse [...], both float64."""
    scores = queries.to(precision) @ keys.to(precision).T * scale
    lse = torch.logsumexp(scores.double(), dim=-1)
    weights = torch.softmax(scores, dim=-1)
    return (weights @ values.to(precision)).double(), lse


def positions(
    cache: torch.Tensor, layout: str, table: torch.Tensor, tokens: int, kv_head: int
) -> torch.Tensor:
    """Rows [tokens, dim] of one KV head of the sequence that `table` [blocks] describes."""
    ids = table.long()
    found = cache[ids, :, kv_head] if layout == "NHD" else cache[ids, kv_head]
    return found.reshape(-1, cache.shape[-1])[:tokens]


TOLERANCE = {"fp32": 1e-6, "fp16": 2e-3, "bf16": 1.6e-2}
"""Of the length of the error vector over that of the answer, for a query of this dtype; a rounding of the
weights and one of the output are 8 times below it. In fp32 the sum over n positions adds 3e-7 sqrt(n)."""


def tolerance(shape: Shape) -> float:
    """Largest relative error, as the length of a vector, that a right answer may have."""
    if shape.query_dtype is torch.float32:
        return TOLERANCE["fp32"] + 3e-7 * math.sqrt(shape.tokens)
    return TOLERANCE["fp16" if shape.query_dtype is torch.float16 else "bf16"]


def distance(got: torch.Tensor, wanted: Sequence[torch.Tensor] | torch.Tensor) -> float:
    """Largest |got - wanted| / |wanted| over rows, vectors by their length; infinite for NaN."""
    want = torch.stack(list(wanted)) if not isinstance(wanted, torch.Tensor) else wanted
    off = torch.linalg.vector_norm(got.double() - want.double(), dim=-1)
    error = float((off / torch.linalg.vector_norm(want.double(), dim=-1)).max())
    return math.inf if math.isnan(error) else error

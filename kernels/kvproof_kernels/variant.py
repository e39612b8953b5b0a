"""Which decode kernel a call needs, and how it is launched.

The CUDA source is a set of templates; a `Variant` is one instantiation of them. The shim, the NVRTC and nvcc
routes and the static gates all take it from here. Chapter sections 3.2.2 and 3.2.7.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvproof_kernels.problem import Problem

HEAD_SIZES = (64, 80, 96, 128, 192, 256)
CPP_TYPES = {"fp32": "float", "fp16": "f16", "bf16": "bf16", "fp8_e4m3": "e4m3"}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1}
EVERY_TOKEN = 2**31 - 1
MAX_TOKENS = 2**30  # of a sequence: token numbers are 32-bit and run a little past the end
TABLE_ENTRIES_PER_THREAD = 4
TENSOR_ROWS = 16  # query heads a tensor-core tile has room for
MIN_SPLIT_TOKENS = 256
MAX_SPLITS = 128
SHARED_PER_SM = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10, "sm_120": 100 << 10}
SMALL = ("sm_86", "sm_89", "sm_120", "sm_121")
"""Chips of 100 KiB of shared memory a multiprocessor (CUDA C++ programming guide, compute capabilities)."""


class Technique(IntFlag):
    """The techniques of chapter section 3.2.7, as in decode.cuh."""

    NONE = 0
    STAGED = 1
    COALESCED = 2
    PREFETCH = 4
    BYPASS = 8
    ALL = 15


class Feature(IntFlag):
    """What changes a score on its way, as in slice.cuh; scales and windows cost nothing and are always in."""

    NONE = 0
    SOFTCAP = 1
    ALIBI = 2


class Params(ctypes.Structure):
    """params.h, field by field."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("part_out", ctypes.c_void_p),
        ("part_lse", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("alibi", ctypes.c_void_p),
        ("table_stride", ctypes.c_longlong),
        ("stride_block", ctypes.c_uint),
        ("stride_token", ctypes.c_uint),
        ("stride_head", ctypes.c_uint),
        ("block_magic", ctypes.c_uint),
        ("block_size", ctypes.c_int),
        ("sequences", ctypes.c_int),
        ("query_heads", ctypes.c_int),
        ("kv_heads", ctypes.c_int),
        ("splits", ctypes.c_int),
        ("split_tokens", ctypes.c_int),
        ("window", ctypes.c_int),
        ("score_scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("v_scale", ctypes.c_float),
    )


@dataclass(frozen=True, kw_only=True)
class Pointers:
    """Addresses of a call's tensors; 0 is null. lse may be null, part_* with one split, alibi without it."""

    q: int
    k: int
    v: int
    out: int
    table: int
    seq_lens: int
    lse: int = 0
    part_out: int = 0
    part_lse: int = 0
    alibi: int = 0


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One instantiation of the decode kernel and of the kernel that combines its splits.

    core: "lanes" (fused multiply-adds) or "tensor" (tensor cores). kv, query: dtype names. heads: query heads
    of one KV head that a block of threads takes. stages: tiles of KV in a warp's ring, one of them in use.
    """

    core: Literal["lanes", "tensor"]
    kv: str
    query: str
    head_dim: int
    heads: int
    warps: int
    stages: int
    features: Feature = Feature.NONE
    techniques: Technique = Technique.ALL

    header = "decode.cuh"
    entry = "entry.cu"
    function = "kvproof_decode"

    @property
    def name(self) -> str:
        """A short name for tables, such as "tensor bf16 128"."""
        words = [self.core, self.kv, str(self.head_dim)]
        if self.core == "lanes":
            words.append(f"{self.heads} head" + "s" * (self.heads > 1))
        words += [str(flag.name).lower() for flag in Feature if flag and flag in self.features]
        if self.techniques != Technique.ALL:
            words.append("no " + "/".join(str(t.name).lower() for t in Technique.ALL & ~self.techniques))
        return " ".join(words)

    def _core(self, namespace: str = "") -> str:
        kv, query = (
            t if t == "float" else namespace + t for t in (CPP_TYPES[self.kv], CPP_TYPES[self.query])
        )
        sizes = [self.head_dim] + [self.heads] * (self.core == "lanes") + [self.warps, self.stages]
        numbers = ", ".join(str(n) for n in [*sizes, int(self.features)])
        return f"{namespace}{self.core.title()}<{kv}, {query}, {numbers}>"

    @property
    def name_expression(self) -> str:
        """The decode kernel's name in C++, for NVRTC."""
        return f"paged::paged_decode<{self._core('paged::')}, {int(self.techniques)}>"

    @property
    def combine_expression(self) -> str:
        """The name of the kernel that combines splits."""
        query = CPP_TYPES[self.query]
        return f"paged::paged_combine<{query if query == 'float' else 'paged::' + query}, {self.head_dim}>"

    @property
    def defines(self) -> dict[str, str | int]:
        """Macros that make entry.cu this variant."""
        return {"KVPROOF_CORE": self._core(), "KVPROOF_TECHNIQUES": int(self.techniques)}

    @property
    def threads(self) -> int:
        """A block of threads."""
        return 32 * self.warps

    @property
    def tile_bytes(self) -> int:
        """What a warp copies at once, K and V together."""
        chunks = self.head_dim * ITEM_BYTES[self.kv] // 16
        if self.core == "tensor":
            return 2 * 16 * 16 * chunks
        pieces = chunks // min(chunks & -chunks, 32)
        return 2 * 16 * 32 * pieces * (4 // pieces if pieces < 3 else 6 // pieces)

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of KV that a block of threads has asked for while it works on others."""
        return self.warps * (self.stages - 1) * self.tile_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of threads: a part of the table; the rings, later the merge."""
        tile = self.tile_bytes
        chunks = self.head_dim * ITEM_BYTES[self.kv] // 16
        if self.core == "tensor" and chunks % 8:
            tile = tile // chunks * (chunks | 1)
        ring = self.warps * self.stages * tile
        if self.core == "tensor" and self.head_dim > 192:
            ring += 32 * self.head_dim  # the queries
        merge = self.warps * self.heads * (self.head_dim + 2) * 4
        return self.threads * TABLE_ENTRIES_PER_THREAD * 4 + max(ring, merge)

    def blocks_per_sm(self, arch: str) -> int:
        """How many blocks of threads a multiprocessor holds at a time, by shared memory and registers."""
        by_shared = SHARED_PER_SM[memory_like(arch)] // (self.shared_bytes + 1024)
        return max(1, min(3 if self.core == "tensor" else 4, by_shared))

    def tiles(self, problem: Problem) -> int:
        """Tiles of query heads a KV head."""
        return -(-problem.group // self.heads)

    def grid(self, problem: Problem, splits: int) -> tuple[int, int, int]:
        """Blocks of the decode kernel."""
        return splits, problem.kv_heads * self.tiles(problem), problem.batch

    def combine_grid(self, problem: Problem) -> tuple[int, int, int]:
        """Blocks of the combine kernel, of head_dim threads each; it is launched with two splits and more."""
        return problem.query_heads, problem.batch, 1


def served_core(kv: str, head_dim: int, group: int) -> Literal["lanes", "tensor"]:
    """Tensor cores from as many query heads a KV head as the other core cannot feed (static gates).

    A row of 80 elements has 5 or 10 pieces, which lanes could only copy in scattered ones and twos.
    """
    if kv == "fp32":
        return "lanes"
    return "tensor" if group >= (2 if kv == "fp8_e4m3" else 3) or head_dim == 80 else "lanes"


def make_variant(
    kv: str,
    head_dim: int,
    group: int,
    *,
    arch: str = "sm_90",
    core: Literal["lanes", "tensor"] | None = None,
    features: Feature = Feature.NONE,
    techniques: Technique = Technique.ALL,
) -> Variant:
    """The variant for a cache dtype, head size and number of query heads a KV head.

    Raises:
        ValueError: the head size or dtype is not served.
    """
    if head_dim not in HEAD_SIZES:
        raise ValueError(f"head size is {head_dim}; the CUDA kernels serve {', '.join(map(str, HEAD_SIZES))}")
    core = core or served_core(kv, head_dim, group)
    if core == "tensor" and kv == "fp32":
        raise ValueError("tensor cores serve fp16, bf16 and fp8_e4m3 caches, not fp32")
    warps, stages = 4, 3
    if core == "tensor":
        # As many bytes in flight as the memory asks for, from as much shared memory as the chip has.
        tile = 32 * head_dim * ITEM_BYTES[kv]
        chip = memory_like(arch)
        if tile <= 3 << 10:
            stages = 5
        elif tile > 12 << 10:
            stages, warps = 2, {"sm_80": 4, "sm_120": 2}.get(chip, 6)
        elif tile > 8 << 10 or (chip == "sm_120" and head_dim == 256):
            stages = 2
    return Variant(
        core=core,
        kv=kv,
        query="bf16" if kv == "fp8_e4m3" else kv,
        head_dim=head_dim,
        heads=TENSOR_ROWS if core == "tensor" else group if group < 3 else 4,
        warps=warps,
        stages=stages,
        features=features,
        techniques=techniques,
    )


def memory_like(arch: str) -> str:
    """The chip of SHARED_PER_SM whose shared memory this one has; of an unknown one, that with the least."""
    arch = arch.rstrip("af")
    known = {"sm_87": "sm_80", "sm_103": "sm_100", "sm_110": "sm_100", **dict.fromkeys(SMALL, "sm_120")}
    return arch if arch in SHARED_PER_SM else known.get(arch, "sm_120")


def decode_variant(problem: Problem, arch: str = "sm_90", techniques: Technique = Technique.ALL) -> Variant:
    """The variant that serves a decode call.

    Raises:
        ValueError: the head size is not served, or the cache's rows do not begin at multiples of 16 bytes.
    """
    features = Feature.SOFTCAP if problem.softcap else Feature.NONE
    if problem.alibi is not None:
        features |= Feature.ALIBI
    if problem.alignment < 16:
        raise ValueError(
            f"the caches' addresses and strides are multiples of {problem.alignment} bytes; the CUDA kernels "
            "need multiples of 16"
        )
    return make_variant(
        problem.dtype, problem.head_dim, problem.group, arch=arch, features=features, techniques=techniques
    )


def _span(problem: Problem) -> int:
    """Tokens that the longest sequence there may be attends to."""
    return min(problem.max_len, problem.window or problem.max_len)


def choose_splits(problem: Problem, sms: int, arch: str = "sm_90") -> int:
    """Into how many parts to cut the longest sequence, so that a GPU of `sms` multiprocessors is filled.

    Every part is a block of threads; they run in waves of what the GPU holds at a time. The least number
    is taken that fills its waves nearly as well as any would, since each part costs a partial result.
    """
    variant = decode_variant(problem, arch)
    at_once = sms * variant.blocks_per_sm(arch)
    blocks = problem.batch * problem.kv_heads * variant.tiles(problem)
    most = min(MAX_SPLITS, -(-_span(problem) // MIN_SPLIT_TOKENS))
    if most <= 1 or blocks == 0:
        return 1

    def filled(splits: int) -> float:
        waves = blocks * splits / at_once
        return waves / math.ceil(waves)

    best = max(filled(splits) for splits in range(1, most + 1))
    return next(splits for splits in range(1, most + 1) if filled(splits) >= 0.85 * best)


def split_tokens(problem: Problem, splits: int) -> int:
    """Tokens of one part; a multiple of 64 unless there is one part only."""
    if splits == 1:
        return max(_span(problem), 1)
    return max(64, (-(-_span(problem) // splits) + 63) // 64 * 64)


def params(problem: Problem, pointers: Pointers, splits: int, tokens: int | None = None) -> Params:
    """What the kernels are handed, params.h.

    Args:
        splits: parts of the longest sequence; 1 or more.
        tokens: of one part, where not `split_tokens(problem, splits)`.

    Raises:
        ValueError: a size is too large for the kernels.
    """
    tokens = split_tokens(problem, splits) if tokens is None else tokens
    if tokens * splits < _span(problem):
        raise ValueError(
            f"{splits} splits of {tokens} tokens do not reach the {_span(problem)} tokens there may be"
        )
    item = ITEM_BYTES[problem.dtype]
    strides = [s * item // 16 for s in (problem.stride_block, problem.stride_token, problem.stride_head)]
    magic = -(-(2**32) // problem.block_size)
    # The multiplication is exact while token * (magic * block_size - 2^32) < 2^32.
    longest = min(MAX_TOKENS, 2**32 // max(1, magic * problem.block_size - 2**32))
    for name, value, most in (
        ("max_len", problem.max_len, longest),
        ("a stride in pieces of 16 bytes", max(strides), 2**32 - 1),
        ("batch", problem.batch, 65535),
        ("query heads", problem.query_heads, 65535),
        ("splits", splits, 65535),
    ):
        if value > most:
            raise ValueError(f"{name} is {value}; the CUDA kernels serve at most {most}")
    scale = problem.scale * problem.k_scale
    return Params(
        q=pointers.q,
        k=pointers.k,
        v=pointers.v,
        out=pointers.out,
        lse=pointers.lse,
        part_out=pointers.part_out,
        part_lse=pointers.part_lse,
        table=pointers.table,
        seq_lens=pointers.seq_lens,
        alibi=pointers.alibi,
        table_stride=problem.table_stride,
        stride_block=strides[0],
        stride_token=strides[1],
        stride_head=strides[2],
        block_magic=magic if problem.block_size > 1 else 0,
        block_size=problem.block_size,
        sequences=problem.batch,
        query_heads=problem.query_heads,
        kv_heads=problem.kv_heads,
        splits=splits,
        split_tokens=tokens,
        window=problem.window or EVERY_TOKEN,
        score_scale=scale / problem.softcap if problem.softcap else scale * math.log2(math.e),
        softcap=problem.softcap * math.log2(math.e),
        v_scale=problem.v_scale,
    )

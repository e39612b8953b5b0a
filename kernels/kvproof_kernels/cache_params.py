"""What the kernels of cuda/cache.cuh are told: their C structs, filled from a checked call."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from kvproof_kernels.problem import CopyProblem, WriteProblem

THREADS = 128
MOST_CACHES = 128  # of a launch of copy_blocks
CPP_TYPES = {"fp32": "float", "fp16": "f16", "bf16": "bf16", "fp8_e4m3": "e4m3"}


class WriteParams(ctypes.Structure):
    _fields_ = (
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("k_cache", ctypes.c_void_p),
        ("v_cache", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("stride_block", ctypes.c_longlong),
        ("stride_token", ctypes.c_longlong),
        ("stride_head", ctypes.c_longlong),
        ("tokens", ctypes.c_int),
        ("block_size", ctypes.c_int),
        ("kv_heads", ctypes.c_int),
        ("head_dim", ctypes.c_int),
        ("k_scale", ctypes.c_float),
        ("v_scale", ctypes.c_float),
    )


class CopyCache(ctypes.Structure):
    """One entry of CopyParams.caches."""

    _fields_ = (("memory", ctypes.c_void_p), ("stride", ctypes.c_longlong), ("bytes", ctypes.c_longlong))


class CopyParams(ctypes.Structure):
    """caches: cache_count of them are used; pairs: int64 [pair_count, 2], (source, target)."""

    _fields_ = (
        ("caches", CopyCache * MOST_CACHES),
        ("pairs", ctypes.c_void_p),
        ("cache_count", ctypes.c_int),
        ("pair_count", ctypes.c_int),
        ("blocks_per_cache", ctypes.c_int),
    )


def write_defines(problem: WriteProblem) -> dict[str, str]:
    """Macros that choose the instantiation of entry_cache.cu; copy_blocks has only one."""
    return {"KVPROOF_KV": CPP_TYPES[problem.dtype], "KVPROOF_SOURCE": CPP_TYPES[problem.source_dtype]}


def write_expression(problem: WriteProblem) -> str:
    """The kernel's name for NVRTC; its grid is (tokens), its block THREADS, without shared memory."""
    types = write_defines(problem)
    names = (t if t == "float" else f"paged::{t}" for t in (types["KVPROOF_KV"], types["KVPROOF_SOURCE"]))
    return f"paged::paged_write<{', '.join(names)}>"


COPY_EXPRESSION = "paged::paged_copy_blocks"


def write_params(
    problem: WriteProblem, k: int, v: int, k_cache: int, v_cache: int, slots: int
) -> WriteParams:
    """The struct of a write from the tensors' addresses."""
    return WriteParams(
        k=k,
        v=v,
        k_cache=k_cache,
        v_cache=v_cache,
        slots=slots,
        stride_block=problem.stride_block,
        stride_token=problem.stride_token,
        stride_head=problem.stride_head,
        tokens=problem.tokens,
        block_size=problem.block_size,
        kv_heads=problem.kv_heads,
        head_dim=problem.head_dim,
        k_scale=problem.k_scale,
        v_scale=problem.v_scale,
    )


def copy_params(
    problem: CopyProblem, caches: Sequence[int], pairs: int, pair_count: int
) -> Iterator[CopyParams]:
    """The structs of a copy from the addresses of caches and pairs, one a launch: MOST_CACHES at a time."""
    entries = [CopyCache(*one) for one in zip(caches, problem.stride_bytes, problem.block_bytes, strict=True)]
    for first in range(0, len(entries), MOST_CACHES):
        some = entries[first : first + MOST_CACHES]
        yield CopyParams(
            caches=(CopyCache * MOST_CACHES)(*some),
            pairs=pairs,
            cache_count=len(some),
            pair_count=pair_count,
            blocks_per_cache=blocks_per_cache(problem),
        )


def blocks_per_cache(problem: CopyProblem) -> int:
    """Blocks of threads that give each thread one piece of 16 bytes."""
    return max(1, -(-max(problem.block_bytes, default=1) // (16 * THREADS)))

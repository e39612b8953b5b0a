"""Paged attention on the CPU: native kernels, built at first use, called through ctypes.

A library is built for exactly the instruction set, cache dtype and head size that a call needs (a few
seconds, once a machine). Instruction sets: "avx512_bf16" (for other caches the same as "avx512"), "avx512",
"avx2" and "portable", the best that the CPU has unless the argument `isa` or $KVPROOF_ISA names one. Threads:
torch.get_num_threads() unless the argument says otherwise. Nothing of torch's C++ is used.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kvproof_kernels.host_build import build
from kvproof_kernels.problem import (
    ITEM_BYTES,
    Problem,
    copy_problem,
    decode_problem,
    prefill_problem,
    write_problem,
)

SOURCES = Path(__file__).parent / "cpu"
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")
ISAS = {
    "portable": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": AVX512,
    "avx512_bf16": (*AVX512, "-mavx512bf16"),
}
FLAGS = ("-O3", "-fno-math-errno", "-Wno-psabi", "-pthread")
ELEMENTS = {"fp32": "float", "fp16": "f16", "bf16": "bf16", "fp8_e4m3": "e4m3"}
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
"""Head sizes with a library of their own; the other multiples of 8 share one."""
SPLIT = 128, 2048
"""Least and most tokens of a split."""


class _Params(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "k", "v", "out", "lse", "table", "seq_lens", "cu_queries", "alibi")
        ),
        *((name, ctypes.c_int64) for name in ("stride_block", "stride_token", "stride_head", "table_stride")),
        *((name, ctypes.c_int64) for name in ("bad_row", "bad_value")),
        *(
            (name, ctypes.c_int32)
            for name in ("batch", "query_heads", "kv_heads", "head_dim", "block_size", "blocks")
        ),
        *(
            (name, ctypes.c_int32)
            for name in ("table_columns", "window", "split_tokens", "threads", "token_major")
        ),
        *((name, ctypes.c_float) for name in ("scale", "softcap", "k_scale", "v_scale")),
    ]


class _Write(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("k", "v", "k_cache", "v_cache", "slots")),
        *((name, ctypes.c_int64) for name in ("tokens", "blocks", "block_size", "kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("stride_block", "stride_token", "stride_head", "bad_row")),
        *((name, ctypes.c_int32) for name in ("item_bytes", "to_fp8")),
        *((name, ctypes.c_float) for name in ("k_scale", "v_scale")),
    ]


def available_isas(dtype: str) -> tuple[str, ...]:
    """Instruction sets that this CPU can run for a cache of `dtype`, best first.

    Raises:
        NoCompiler: nothing can be built.
        BuildFailed: the compiler refused the sources.
    """
    has = _cache_library().kvproof_instruction_sets()
    names = [name for bit, name in ((4, "avx512_bf16"), (2, "avx512"), (1, "avx2")) if has & bit]
    return (*(name for name in names if dtype == "bf16" or name != "avx512_bf16"), "portable")


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    layout: str = "NHD",
    *,
    isa: str | None = None,
    threads: int | None = None,
    split_tokens: int | None = None,
    **features: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one query token a sequence (chapter section 3.2.2).

    Args:
        q: [sequences, query_heads, dim], of the caches' dtype (bf16 for fp8_e4m3).
        k_cache: [blocks, block_size, kv_heads, dim] for NHD, [blocks, kv_heads, block_size, dim] for HND;
            float32, float16, bfloat16 or float8_e4m3fn.
        v_cache: of k_cache's shape, dtype and strides.
        block_table: int32 [sequences, columns]; entries past a sequence's length are not looked at.
        seq_lens: int32 [sequences], in tokens, from 0.
        scale: what the products of q and k are multiplied by.
        layout: "NHD" or "HND".
        isa: instruction set; default the best.
        threads: at most so many; a small call takes fewer.
        split_tokens: tokens of a sequence that one thread works on at a time. The default depends on the
            lengths alone, so that results do not change with the number of threads.
        features: softcap, alibi (float32 [query_heads]), window, k_scale, v_scale.

    Returns:
        out of q's shape and dtype, and lse [sequences, query_heads] float32, natural logarithm. Length 0:
        zeros and -inf.

    Raises:
        ValueError: a shape, dtype, length or block id that does not fit; the message names it.
        NoCompiler, BuildFailed: at first use.
    """
    problem = decode_problem(q, k_cache, v_cache, block_table, seq_lens, scale, layout, **features)
    if split_tokens is None:
        # 64 tasks: enough for the threads of most machines, and each long enough to hide its start.
        split_tokens = min(max(-(-int(seq_lens.sum()) // 64 // 64) * 64, SPLIT[0]), SPLIT[1])
    if split_tokens < 1:
        raise ValueError(f"split_tokens must be at least 1, not {split_tokens}")
    split_tokens = min(split_tokens, 2**30)
    return _attention(
        "kvproof_decode",
        problem,
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        None,
        isa,
        threads,
        split_tokens,
    )


def prefill(
    q: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    layout: str = "NHD",
    *,
    isa: str | None = None,
    threads: int | None = None,
    **features: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of the last query tokens of each sequence, whose KV is in the cache already.

    Args:
        q: [tokens, query_heads, dim]; sequence b's are q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]].
        cu_seqlens_q: int32 [sequences + 1], from 0 to tokens.
        seq_lens: int32 [sequences], tokens in the cache, those of q among them.
        k_cache, v_cache, block_table, scale, layout, isa, threads, features: as for decode.

    Returns:
        out of q's shape and dtype, and lse [tokens, query_heads] float32.

    Raises:
        ValueError: a shape, dtype, length or block id that does not fit; the message names it.
        NoCompiler, BuildFailed: at first use.
    """
    problem = prefill_problem(
        q, cu_seqlens_q, k_cache, v_cache, block_table, seq_lens, scale, layout, **features
    )
    if int(cu_seqlens_q[0]) != 0 or int(cu_seqlens_q[-1]) != problem.queries:
        raise ValueError(
            f"cu_seqlens_q must go from 0 to the {problem.queries} tokens of q, "
            f"not from {int(cu_seqlens_q[0])} to {int(cu_seqlens_q[-1])}"
        )
    return _attention(
        "kvproof_prefill", problem, q, k_cache, v_cache, block_table, seq_lens, cu_seqlens_q, isa, threads, 1
    )


def write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    layout: str = "NHD",
    *,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Store the KV of new tokens into their slots.

    Args:
        k: [tokens, kv_heads, dim] of the caches' dtype; for fp8_e4m3 caches bf16 as well, which is divided
            by its scale and rounded to nearest even, to 448 at most.
        v: of k's shape and dtype.
        slot_mapping: int64 [tokens], block * block_size + offset; -1 is skipped.
        k_cache, v_cache, layout: as for decode.

    Raises:
        ValueError: a shape, dtype or slot that does not fit; nothing has been written then.
        NoCompiler, BuildFailed: at first use.
    """
    p = write_problem(k, v, k_cache, v_cache, slot_mapping, layout, k_scale, v_scale)
    _on_cpu(k_cache)
    call = _Write(
        *(tensor.data_ptr() for tensor in (k, v, k_cache, v_cache, slot_mapping)),
        *(p.tokens, p.blocks, p.block_size, p.kv_heads, p.head_dim),
        *(p.stride_block, p.stride_token, p.stride_head, 0),
        *(ITEM_BYTES[p.dtype], int(p.source_dtype != p.dtype)),
        *(p.k_scale, p.v_scale),
    )
    if _cache_library().kvproof_write(ctypes.byref(call)):
        raise ValueError(
            f"slot_mapping[{call.bad_row}] is {int(slot_mapping[call.bad_row])}; "
            f"allowed: -1 and 0..{p.blocks * p.block_size - 1}"
        )


def copy_blocks(caches: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks (source, target) in every cache, one pair after another.

    Args:
        caches: tensors [blocks, ...] whose blocks are contiguous.
        pairs: source and target block.

    Raises:
        ValueError: a cache or block id that does not fit; nothing has been copied then.
        NoCompiler, BuildFailed: at first use.
    """
    problem = copy_problem(caches, pairs)
    flat = [block for pair in problem.pairs for block in pair]
    array = (ctypes.c_int64 * len(flat))(*flat)
    for cache in caches:
        _on_cpu(cache)
    for cache, size, stride in zip(caches, problem.block_bytes, problem.stride_bytes, strict=True):
        _cache_library().kvproof_copy_blocks(cache.data_ptr(), array, len(problem.pairs), size, stride)


def read(data: torch.Tensor, threads: int | None = None) -> float:
    """Sum a contiguous float32 tensor, as fast as memory gives it: the measure of read bandwidth."""
    if data.dtype != torch.float32 or not data.is_contiguous():
        raise ValueError("read needs a contiguous float32 tensor")
    _on_cpu(data)
    return float(
        _cache_library().kvproof_read(data.data_ptr(), data.numel(), threads or torch.get_num_threads())
    )


def _attention(
    function: str,
    p: Problem,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor | None,
    isa: str | None,
    threads: int | None,
    split_tokens: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    _on_cpu(q)
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32)
    pointers = (q, k_cache, v_cache, out, lse, block_table, seq_lens, cu_queries, p.alibi)
    call = _Params(
        *(tensor.data_ptr() if tensor is not None else None for tensor in pointers),
        *(p.stride_block, p.stride_token, p.stride_head, p.table_stride, 0, 0),
        *(p.batch, p.query_heads, p.kv_heads, p.head_dim, p.block_size, p.blocks, p.table_columns),
        *(p.window, split_tokens, threads or torch.get_num_threads()),
        int(p.layout == "NHD" or p.block_size == 1),
        *(p.scale, p.softcap, p.k_scale, p.v_scale),
    )
    library = _library(_chosen_isa(isa, p.dtype), p.dtype, p.head_dim if p.head_dim in HEAD_DIMS else 0)
    status = getattr(library, function)(ctypes.byref(call))
    if status == 1:
        raise ValueError(
            f"seq_lens[{call.bad_row}] is {call.bad_value}; allowed: 0 to {p.max_len}, "
            f"{p.table_columns} columns of {p.block_size} tokens"
        )
    if status == 2:
        raise ValueError(
            f"row {call.bad_row} of block_table names block {call.bad_value}; allowed: 0..{p.blocks - 1}"
        )
    if status == 3:
        raise ValueError(
            f"cu_seqlens_q gives sequence {call.bad_row} {call.bad_value} query tokens; "
            f"allowed: 0 to its {int(seq_lens[call.bad_row])} tokens"
        )
    return out, lse


def _on_cpu(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"the CPU kernels take tensors on cpu, not on {tensor.device}")


def _chosen_isa(isa: str | None, dtype: str) -> str:
    allowed = available_isas(dtype)
    wanted = isa or os.environ.get("KVPROOF_ISA") or allowed[0]
    if wanted == "avx512_bf16" and dtype != "bf16":
        wanted = "avx512"
    if wanted not in allowed:
        raise ValueError(f"isa is {wanted!r}; this CPU runs {', '.join(allowed)} for {dtype}")
    return wanted


@functools.cache
def _library(isa: str, dtype: str, head_dim: int) -> ctypes.CDLL:
    defines: dict[str, str | int] = {"KV": ELEMENTS[dtype], "HEAD_DIM": head_dim}
    library = ctypes.CDLL(str(build([SOURCES / "attention.cpp"], (*FLAGS, *ISAS[isa]), defines=defines)))
    if library.kvproof_params_size() != ctypes.sizeof(_Params):
        raise RuntimeError("cpu/params.h and cpu.py disagree on the size of Params")
    return library


@functools.cache
def _cache_library() -> ctypes.CDLL:

    library = ctypes.CDLL(str(build([SOURCES / "cache.cpp"], FLAGS)))
    if library.kvproof_write_size() != ctypes.sizeof(_Write):
        raise RuntimeError("cpu/cache.cpp and cpu.py disagree on the size of Write")
    library.kvproof_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
    library.kvproof_read.restype = ctypes.c_float
    library.kvproof_copy_blocks.argtypes = [ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3]
    library.kvproof_copy_blocks.restype = None
    return library

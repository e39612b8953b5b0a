"""The CUDA kernels on a GPU, with the contract's arguments: torch tensors in and out, torch's current stream.

Nothing waits for the device and nothing looks at a tensor's data, so calls can be captured in a CUDA graph:
run the same call once before, as torch.cuda.graph asks of everything, so that its kernels are compiled and
loaded. Grids are made for the longest sequence that the block table can hold; lengths are read on the device.
Results and workspace come from torch's allocator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvproof_kernels import cache_params
from kvproof_kernels import variant as variants
from kvproof_kernels.launch import Call, Gpu, Launch, gpu
from kvproof_kernels.prefill_variant import prefill_params, prefill_variant
from kvproof_kernels.problem import (
    Problem,
    copy_problem,
    decode_problem,
    prefill_problem,
    write_problem,
)
from kvproof_kernels.variant import Technique

CACHE_HEADER, CACHE_ENTRY = "cache.cuh", "entry_cache.cu"
COPY_DEFINES = {"KVPROOF_KV": "float", "KVPROOF_SOURCE": "float"}  # copies do not look at them


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    *,
    layout: str = "NHD",
    splits: int | None = None,
    techniques: Technique = Technique.ALL,
    **features: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one query token a sequence (chapter sections 3.2.2 and 3.2.7).

    Args:
        q: [sequences, query_heads, dim], of the caches' dtype (bf16 for fp8_e4m3).
        k_cache: [blocks, block_size, kv_heads, dim] for NHD, [blocks, kv_heads, block_size, dim] for HND;
            float32, float16, bfloat16 or float8_e4m3fn, rows at multiples of 16 bytes.
        v_cache: of k_cache's shape, dtype and strides.
        block_table: int32 [sequences, columns]; entries past a sequence's length are not looked at.
        seq_lens: int32 [sequences], in tokens, at most columns * block_size; not checked, as it is on the
            device.
        scale: what the products of q and k are multiplied by.
        layout: "NHD" or "HND".
        splits: parts of the longest sequence; default as many as fill the device.
        techniques: those of chapter section 3.2.7 that are compiled in; all of them, unless one is measured.
        features: softcap, alibi (float32 [query_heads]), window, k_scale, v_scale.

    Returns:
        out of q's shape and dtype, and lse [sequences, query_heads] float32, natural logarithm. Length 0:
        zeros and -inf.

    Raises:
        ValueError: a tensor or size that is not served; the message names the limit.
        launch.LaunchFailed: the driver refused.
        nvrtc.NoNvrtc, nvrtc.CompileFailed: at the first use of a kernel.
    """
    problem = decode_problem(q, k_cache, v_cache, block_table, seq_lens, scale, layout, **features)
    device, stream, capturing = _queue(q)
    with _on(q):
        out, lse = _results(q)
        parts = splits or variants.choose_splits(problem, device.sms, device.arch)
        room = _workspace(problem, parts, q.device)
        pointers = _pointers(problem, q, k_cache, v_cache, block_table, seq_lens, out, lse, *room)
        call = decode_call(problem, pointers, parts, device.arch, techniques)
        device.start(call, stream, capturing)
    return out, lse


def decode_call(
    problem: Problem,
    pointers: variants.Pointers,
    splits: int,
    arch: str,
    techniques: Technique = Technique.ALL,
) -> Call:
    """What a decode call starts: attention, and the combination of its splits if there are several."""
    variant = variants.decode_variant(problem, arch, techniques)
    launches = [
        Launch(
            variant.header,
            variant.name_expression,
            variant.grid(problem, splits),
            variant.threads,
            variant.shared_bytes,
        )
    ]
    if splits > 1:
        grid = variant.combine_grid(problem)
        launches.append(Launch(variant.header, variant.combine_expression, grid, problem.head_dim))
    params = variants.params(problem, pointers, splits)
    return Call(tuple(launches), params, variant.entry, variant.function, variant.defines)


def prefill(
    q: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    *,
    layout: str = "NHD",
    **features: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of several query tokens a sequence, whose KV is in the cache (chapter section 3.2.2).

    Args:
        q: [tokens, query_heads, dim]; row b's are q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]], its last ones.
        cu_seqlens_q: int32 [sequences + 1], from 0 to tokens; not checked, as it is on the device.
        k_cache, v_cache, block_table, seq_lens, scale, layout, features: as for decode; alibi and window
            count from each query's position.

    Returns:
        out [tokens, query_heads, dim] of q's dtype, and lse [tokens, query_heads] float32.

    Raises:
        ValueError, launch.LaunchFailed, nvrtc.NoNvrtc, nvrtc.CompileFailed: as decode.
    """
    tensors = (q, cu_seqlens_q, k_cache, v_cache, block_table, seq_lens)
    problem = prefill_problem(*tensors, scale, layout, **features)
    device, stream, capturing = _queue(q)
    with _on(q):
        out, lse = _results(q)
        pointers = _pointers(problem, q, k_cache, v_cache, block_table, seq_lens, out, lse)
        variant = prefill_variant(problem)
        grid = variant.grid(problem) if problem.queries else (0, 1, 1)
        launch = Launch(variant.header, variant.name_expression, grid, variant.threads, variant.shared_bytes)
        params = prefill_params(problem, pointers, cu_seqlens_q.data_ptr())
        call = Call((launch,), params, variant.entry, variant.function, variant.defines)
        device.start(call, stream, capturing)
    return out, lse


def write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    layout: str = "NHD",
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """Store the KV of new tokens into their slots.

    Args:
        k: [tokens, kv_heads, dim], of the caches' dtype, or bf16 for fp8_e4m3 caches.
        v: of k's shape and dtype.
        k_cache: as for decode; any alignment.
        v_cache: as for decode.
        slot_mapping: int64 [tokens], block * block_size + offset; negative ones are skipped.
        layout: "NHD" or "HND".
        k_scale: what k is divided by on its way to fp8; v_scale the same for v.

    Raises:
        ValueError, launch.LaunchFailed, nvrtc.NoNvrtc, nvrtc.CompileFailed: as decode.
    """
    problem = write_problem(k, v, k_cache, v_cache, slot_mapping, layout, k_scale, v_scale)
    device, stream, capturing = _queue(k)
    addresses = [tensor.data_ptr() for tensor in (k, v, k_cache, v_cache, slot_mapping)]
    expression = cache_params.write_expression(problem)
    call = Call(
        launches=(Launch(CACHE_HEADER, expression, (problem.tokens, 1, 1), cache_params.THREADS),),
        params=cache_params.write_params(problem, *addresses),
        entry=CACHE_ENTRY,
        function="kvproof_write",
        defines=cache_params.write_defines(problem),
    )
    with _on(k):
        device.start(call, stream, capturing)


def copy_blocks(caches: Sequence[torch.Tensor], pairs: Sequence[tuple[int, int]] | torch.Tensor) -> None:
    """Copy whole blocks in every cache, one pair after another.

    Args:
        caches: tensors [blocks, ...] of one device; the entries of a block lie together.
        pairs: (source, target), checked; or int64 [n, 2] on the device, for graph capture, unchecked.

    Raises:
        ValueError, launch.LaunchFailed, nvrtc.NoNvrtc, nvrtc.CompileFailed: as decode.
    """
    listed = not isinstance(pairs, torch.Tensor) or pairs.device != caches[0].device
    problem = copy_problem(caches, [(int(a), int(b)) for a, b in pairs] if listed else [])
    if not len(pairs) or not len(caches):
        return
    first = caches[0]
    device, stream, capturing = _queue(first)
    if capturing and listed:
        raise ValueError("a graph would keep these pairs for ever; pass pairs as int64 [n, 2] on the device")
    with _on(first):
        moves = torch.as_tensor(pairs, dtype=torch.int64, device=first.device)
        if moves.dim() != 2 or moves.shape[1] != 2 or not moves.is_contiguous():
            raise ValueError(f"pairs must be int64 [n, 2], contiguous, not of shape {list(moves.shape)}")
        places = [cache.data_ptr() for cache in caches]
        for params in cache_params.copy_params(problem, places, moves.data_ptr(), len(moves)):
            grid = (params.blocks_per_cache, params.cache_count, 1)
            call = Call(
                launches=(Launch(CACHE_HEADER, cache_params.COPY_EXPRESSION, grid, cache_params.THREADS),),
                params=params,
                entry=CACHE_ENTRY,
                function="kvproof_copy_blocks",
                defines=COPY_DEFINES,
            )
            device.start(call, stream, capturing)


def _results(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)


def _workspace(problem: Problem, splits: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Partial results and their lse, float32 [sequences, query_heads, splits(, dim)]; none with one split.

    It goes back to torch's allocator when the call returns, which hands it out again on the same stream only.
    """
    if splits == 1:
        return ()
    shape = (problem.queries, problem.query_heads, splits)
    options: dict[str, Any] = {"dtype": torch.float32, "device": device}
    return torch.empty(*shape, problem.head_dim, **options), torch.empty(*shape, **options)


def _pointers(
    problem: Problem,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    part_out: torch.Tensor | None = None,
    part_lse: torch.Tensor | None = None,
) -> variants.Pointers:
    def address(tensor: torch.Tensor | None) -> int:
        return 0 if tensor is None else int(tensor.data_ptr())

    if address(q) % 16:
        raise ValueError("q begins at no multiple of 16 bytes, which the CUDA kernels need")
    return variants.Pointers(
        q=address(q),
        k=address(k_cache),
        v=address(v_cache),
        out=address(out),
        lse=address(lse),
        table=address(block_table),
        seq_lens=address(seq_lens),
        part_out=address(part_out),
        part_lse=address(part_lse),
        alibi=address(problem.alibi),
    )


def _queue(tensor: torch.Tensor) -> tuple[Gpu, int, bool]:
    """The device of a tensor, torch's current stream there, and whether that stream records a graph."""
    if not tensor.is_cuda:
        raise ValueError(f"the tensors are on {tensor.device}; the CUDA kernels serve tensors on a GPU")
    with _on(tensor):
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        return gpu(tensor.device.index), int(stream), torch.cuda.is_current_stream_capturing()


def _on(tensor: torch.Tensor) -> torch.cuda.device:
    return torch.cuda.device(tensor.device if tensor.is_cuda else -1)  # -1 changes nothing

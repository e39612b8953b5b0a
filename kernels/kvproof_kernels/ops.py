"""The kernels as torch operators, which torch.compile, torch.export and opcheck understand.

    import kvproof_kernels.ops
    out, lse = torch.ops.kvproof.paged_decode(q, k_cache, v_cache, block_table, seq_lens, scale)

Tensors on a GPU go to gpu.py, others to cpu.py. Shapes and meanings are those of the kernel contract, and
`layout` is "NHD" or "HND". There is no backward: these serve inference.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_PLACES = "Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, float scale"
_FEATURES = (
    'Tensor? alibi=None, *, str layout="NHD", float softcap=0.0, int window=0, '
    "float k_scale=1.0, float v_scale=1.0"
)
DECODE = f"(Tensor q, {_PLACES}, {_FEATURES}) -> (Tensor, Tensor)"
PREFILL = f"(Tensor q, Tensor cu_seqlens_q, {_PLACES}, {_FEATURES}) -> (Tensor, Tensor)"
WRITE = (
    "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, "
    '*, str layout="NHD", float k_scale=1.0, float v_scale=1.0) -> ()'
)
COPY_BLOCKS = "(Tensor(a!)[] caches, Tensor pairs) -> ()"


def _kernels(tensor: Tensor) -> ModuleType:
    # Imported at the first call: a machine without a compiler, or without a GPU, can load the operators.
    if tensor.is_cuda:
        from kvproof_kernels import gpu

        return gpu
    from kvproof_kernels import cpu

    return cpu


@torch.library.custom_op("kvproof::paged_decode", mutates_args=(), schema=DECODE)
def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi: Tensor | None = None,
    **features: Any,
) -> tuple[Tensor, Tensor]:
    """Attention of one query token a sequence: out [B, Hq, D] of q's dtype, lse [B, Hq] float32."""
    out, lse = _kernels(q).decode(q, k_cache, v_cache, block_table, seq_lens, scale, alibi=alibi, **features)
    return out, lse


@torch.library.custom_op("kvproof::paged_prefill", mutates_args=(), schema=PREFILL)
def paged_prefill(
    q: Tensor,
    cu_seqlens_q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    alibi: Tensor | None = None,
    **features: Any,
) -> tuple[Tensor, Tensor]:
    """Causal attention of several query tokens a sequence: out [T, Hq, D], lse [T, Hq] float32."""
    out, lse = _kernels(q).prefill(
        q, cu_seqlens_q, k_cache, v_cache, block_table, seq_lens, scale, alibi=alibi, **features
    )
    return out, lse


@paged_decode.register_fake
@paged_prefill.register_fake
def _(q: Tensor, *places: Any, **features: Any) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    return out, q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.custom_op("kvproof::paged_write", mutates_args=("k_cache", "v_cache"), schema=WRITE)
def paged_write(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, **features: Any
) -> None:
    """Store k and v [T, Hkv, D] at the slots, int64 [T]; -1 is skipped."""
    _kernels(k).write(k, v, k_cache, v_cache, slot_mapping, **features)


@torch.library.custom_op("kvproof::paged_copy_blocks", mutates_args=("caches",), schema=COPY_BLOCKS)
def paged_copy_blocks(caches: list[Tensor], pairs: Tensor) -> None:
    """Copy whole blocks in every cache, one pair after another; pairs int64 [n, 2] of source and target."""
    if not caches:
        return
    _kernels(caches[0]).copy_blocks(caches, pairs if pairs.is_cuda else pairs.tolist())


@paged_write.register_fake
@paged_copy_blocks.register_fake
def _(*arguments: Any, **features: Any) -> None:
    return None

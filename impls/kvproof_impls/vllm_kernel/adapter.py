"""vLLM's default attention: its build of FlashAttention (3 on Hopper, else 2), blocks of 16 and up."""

from typing import Any, Literal

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func

from kvproof.contract import Limits
from kvproof_impls.baseline import checked, starts, window_size


class VllmKernel:
    """One query token a sequence, as a batch of ragged sequences of one token each."""

    capabilities = frozenset({"features", "lse", "graph"})
    layout: Literal["NHD"] = "NHD"
    limits = Limits(
        dtypes=("fp16", "bf16"),
        head_sizes=(64, 96, 128, 192, 256),
        block_sizes=range(16, 257, 16),
        features=("softcap", "window"),
        devices=("cuda",),
    )

    def __init__(self) -> None:
        self.version = 3 if torch.cuda.get_device_capability()[0] == 9 else 2

    def decode(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        **features: Any,
    ) -> tuple[Any, Any]:
        checked(self.limits, q, k_cache, v_cache, block_table, seq_lens, scale, **features)
        out, lse = flash_attn_varlen_func(
            q,
            k_cache,
            v_cache,
            max_seqlen_q=1,
            cu_seqlens_q=starts(q.shape[0], q.device),
            max_seqlen_k=block_table.shape[1] * k_cache.shape[1],
            seqused_k=seq_lens,
            block_table=block_table,
            softmax_scale=scale,
            causal=True,
            window_size=list(window_size(features.get("window", 0))),
            softcap=features.get("softcap", 0.0),
            return_softmax_lse=True,
            fa_version=self.version,
        )
        return out, lse.T


def make() -> VllmKernel:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return VllmKernel()

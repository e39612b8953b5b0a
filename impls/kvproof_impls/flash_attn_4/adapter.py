"""FlashAttention 4 (CuTe DSL): `flash_attn_varlen_func` with `page_table`; it compiles at the first call."""

from typing import Any, Literal

from flash_attn.cute.interface import flash_attn_varlen_func

from kvproof.contract import Limits
from kvproof_impls.baseline import checked, starts


class FlashAttention4:
    """One query token a sequence, passed as a batch of ragged sequences of one token each."""

    capabilities = frozenset({"features", "lse", "graph"})
    layout: Literal["NHD"] = "NHD"
    limits = Limits(
        dtypes=("fp16", "bf16"),
        head_sizes=(64, 96, 128),
        block_sizes=range(1, 257),
        features=("softcap", "window"),
        devices=("cuda",),
    )

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
        window = features.get("window", 0)
        out, lse = flash_attn_varlen_func(
            q,
            k_cache,
            v_cache,
            cu_seqlens_q=starts(q.shape[0], q.device),
            max_seqlen_q=1,
            max_seqlen_k=block_table.shape[1] * k_cache.shape[1],
            seqused_k=seq_lens,
            page_table=block_table,
            softmax_scale=scale,
            causal=True,
            window_size=(window - 1, 0) if window else (None, None),
            softcap=features.get("softcap", 0.0),
            return_lse=True,
        )
        return out, lse.T


def make() -> FlashAttention4:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return FlashAttention4()

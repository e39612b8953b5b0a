"""FlashAttention 3 (Hopper): `flash_attn_with_kvcache` with `page_table`, any block size, 16-bit types."""

from typing import Any, Literal

from flash_attn_interface import flash_attn_with_kvcache

from kvproof.contract import Limits
from kvproof_impls.baseline import checked, window_size


class FlashAttention3:
    """One query token a sequence; splits and packing of grouped heads are its own heuristics'."""

    capabilities = frozenset({"features", "lse", "graph"})
    layout: Literal["NHD"] = "NHD"
    limits = Limits(
        dtypes=("fp16", "bf16"),
        head_sizes=(64, 96, 128, 192, 256),
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
        out, lse, *_ = flash_attn_with_kvcache(
            q[:, None],
            k_cache,
            v_cache,
            cache_seqlens=seq_lens,
            page_table=block_table,
            softmax_scale=scale,
            causal=True,
            window_size=window_size(features.get("window", 0)),
            softcap=features.get("softcap", 0.0),
            return_softmax_lse=True,
        )
        return out[:, 0], lse[:, :, 0]


def make() -> FlashAttention3:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return FlashAttention3()

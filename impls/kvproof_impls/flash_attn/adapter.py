"""FlashAttention 2: `flash_attn_with_kvcache` with `block_table`. Blocks of 256, 16-bit types."""

from typing import Any, Literal

from flash_attn import flash_attn_with_kvcache

from kvproof.contract import Limits
from kvproof_impls.baseline import checked, window_size


class FlashAttention2:
    """One query token a sequence; the split count is its own heuristic's."""

    capabilities = frozenset({"features", "lse", "graph"})
    layout: Literal["NHD"] = "NHD"
    limits = Limits(
        dtypes=("fp16", "bf16"),
        head_sizes=range(8, 257, 8),
        block_sizes=(256,),
        features=("softcap", "alibi", "window"),
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
        out, lse = flash_attn_with_kvcache(
            q[:, None],
            k_cache,
            v_cache,
            cache_seqlens=seq_lens,
            block_table=block_table,
            softmax_scale=scale,
            causal=True,
            window_size=window_size(features.get("window", 0)),
            softcap=features.get("softcap", 0.0),
            alibi_slopes=features.get("alibi"),
            return_softmax_lse=True,
        )
        return out[:, 0], lse[:, :, 0]


def make() -> FlashAttention2:
    """Caches [blocks, 256, kv_heads, dim]."""
    return FlashAttention2()

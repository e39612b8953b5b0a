"""FlashAttention 2, of the package flash-attn."""

"""FlashAttention 3, for Hopper GPUs."""

"""FlashAttention 4, in CuTe DSL, for Hopper and Blackwell GPUs."""

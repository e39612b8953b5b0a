"""Gather the blocks of a sequence, then attention in plain torch: slow, and easy to be sure of."""

from kvproof_impls.torch_gather.kernel import GatherKernel


def make() -> GatherKernel:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return GatherKernel()

"""The CUDA kernels on a GPU, compiled by NVRTC at first use, launched on torch's current stream."""

from kvproof.contract import Limits
from kvproof_impls.native import ALL, SERVED, NativeKernel
from kvproof_kernels import gpu

LIMITS = Limits(**{**SERVED, "devices": ("cuda",)})


def make() -> NativeKernel:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return NativeKernel(gpu, "NHD", LIMITS, ALL | {"graph"})


def make_hnd() -> NativeKernel:
    """Caches [blocks, kv_heads, block_size, dim]."""
    return NativeKernel(gpu, "HND", LIMITS, ALL | {"graph"})

"""The native CPU kernels: AVX-512, AVX2 or portable, chosen at run time."""

from kvproof_impls.native import NativeKernel
from kvproof_kernels import cpu


def make() -> NativeKernel:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return NativeKernel(cpu, "NHD")


def make_hnd() -> NativeKernel:
    """Caches [blocks, kv_heads, block_size, dim]."""
    return NativeKernel(cpu, "HND")

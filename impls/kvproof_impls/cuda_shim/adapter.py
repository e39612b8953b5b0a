"""The CUDA kernels run on the CPU by the SIMT shim, under a sanitizer or none."""

from collections.abc import Callable
from typing import Any

from kvproof.contract import KernelFault
from kvproof_impls.native import NativeKernel
from kvproof_kernels.shim import Shim
from kvproof_kernels.shim_report import ShimStopped


class ShimKernel(NativeKernel):
    """Every call runs in another order of threads."""

    def called(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.functions.seed += 1
        try:
            return super().called(function, *arguments, **named)
        except ShimStopped as stop:
            raise KernelFault(stop.kind, stop.report) from None


def make() -> ShimKernel:
    """Random thread order, copies that arrive late, unset memory full of NaN."""
    return ShimKernel(Shim("plain"))


def make_hnd() -> ShimKernel:
    """The same with caches [blocks, kv_heads, block_size, dim]."""
    return ShimKernel(Shim("plain"), "HND")


def make_asan() -> ShimKernel:
    """AddressSanitizer and UBSan; what the call must not touch is poisoned."""
    return ShimKernel(Shim("asan"))


def make_tsan() -> ShimKernel:
    """ThreadSanitizer as a race detector of shared and global memory."""
    return ShimKernel(Shim("tsan"))

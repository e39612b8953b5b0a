"""The CUDA decode kernel without one of its four techniques (chapter 3.2.7): what does each one buy?"""

import functools
from types import SimpleNamespace

from kvproof_impls.cuda.adapter import LIMITS
from kvproof_impls.native import NativeKernel
from kvproof_kernels import gpu
from kvproof_kernels.variant import Technique


def _with(techniques: Technique) -> NativeKernel:
    functions = SimpleNamespace(decode=functools.partial(gpu.decode, techniques=techniques))
    return NativeKernel(functions, "NHD", LIMITS, frozenset({"features", "lse", "empty", "graph"}))


def make() -> NativeKernel:
    """None of them."""
    return _with(Technique.NONE)


def make_without_staged() -> NativeKernel:
    """The table is not staged in shared memory."""
    return _with(Technique.ALL & ~Technique.STAGED)


def make_without_coalesced() -> NativeKernel:
    """Table entries are not loaded together."""
    return _with(Technique.ALL & ~Technique.COALESCED)


def make_without_prefetch() -> NativeKernel:
    """The next entries are not fetched ahead."""
    return _with(Technique.ALL & ~Technique.PREFETCH)


def make_without_bypass() -> NativeKernel:
    """Tables of one or two entries take the same path as all."""
    return _with(Technique.ALL & ~Technique.BYPASS)

"""Kernels that misbehave in ways that are no wrong value."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from kvproof.contract import BadInput, KernelFault


def _kernel(decode: Callable[..., Any], **members: Any) -> Any:
    from kvproof_impls.torch_gather.kernel import GatherKernel

    kernel: Any = GatherKernel()
    kernel.decode = decode
    for name, value in members.items():
        setattr(kernel, name, value)
    return kernel


def crashes() -> Any:
    """Reads address 8."""
    return _kernel(lambda *tensors, **features: ctypes.string_at(8, 8))


def hangs() -> Any:
    return _kernel(lambda *tensors, **features: time.sleep(3600))


def raises() -> Any:
    def decode(*tensors: Any, **features: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    return _kernel(decode)


def refuses() -> Any:
    """Names limits that it does not keep."""

    def decode(*tensors: Any, **features: Any) -> Any:
        raise BadInput("not today")

    return _kernel(decode)


def answers_one_tensor() -> Any:
    return _kernel(lambda q, *tensors, **features: q)


def answers_another_shape() -> Any:
    return _kernel(lambda q, *tensors, **features: (q[:, :1], None))


def stopped_by_a_sanitizer() -> Any:
    def decode(*tensors: Any, **features: Any) -> Any:
        raise KernelFault("race", "thread 3 reads what thread 0 writes: decode.cuh:120")

    return _kernel(decode)


def scales_in_place() -> Any:
    """The answer is right; the query is not what it was."""
    kernel = _kernel(lambda *tensors, **features: None)
    sound = type(kernel)().decode
    kernel.decode = lambda q, k, v, table, lens, scale, **features: sound(
        q.mul_(0.5), k, v, table, lens, scale * 2, **features
    )
    return kernel


def misspelt_limit() -> Any:
    return _kernel(lambda *tensors, **features: None, limits={"head_size": (64,)})


def unknown_dtype() -> Any:
    return _kernel(lambda *tensors, **features: None, limits={"dtypes": ("float32",)})


def misspelt_capability() -> Any:
    return _kernel(lambda *tensors, **features: None, capabilities=frozenset({"lses"}))


def unknown_layout() -> Any:
    return _kernel(lambda *tensors, **features: None, layout="DNH")

"""For adapters to kernels that do not check for themselves: their limits, checked before the call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from kvproof.contract import BadInput, Limits
from kvproof_kernels import problem
from kvproof_kernels.problem import Layout

OFF = {"softcap": 0, "window": 0, "k_scale": 1, "v_scale": 1}
"""Values that change nothing."""


def asked(features: Mapping[str, Any]) -> dict[str, Any]:
    """The features that are not off: these the limits have to allow."""
    return {n: v for n, v in features.items() if v is not None and (n not in OFF or v != OFF[n])}


def checked(limits: Limits, *tensors: Any, layout: Layout = "NHD", **features: Any) -> problem.Problem:
    """The sizes of a call of decode.

    Raises:
        BadInput: it is no decode call, or outside `limits`; the message names the limit.
    """
    features = asked(features)
    try:
        found = problem.decode_problem(*tensors, layout=layout, **features)  # type: ignore[misc]
    except ValueError as error:
        raise BadInput(str(error)) from None
    for what, value, allowed in (
        ("dtype", found.dtype, limits.get("dtypes")),
        ("head size", found.head_dim, limits.get("head_sizes")),
        ("block size", found.block_size, limits.get("block_sizes")),
        ("group", found.group, limits.get("groups")),
        *(("feature", name, limits.get("features", ())) for name in features),
    ):
        if allowed is not None and value not in allowed:
            raise BadInput(f"{what} is {value}; allowed: {', '.join(map(str, allowed)) or 'none'}")
    return found


def window_size(window: int) -> tuple[int, int]:
    """FlashAttention's (left, right) of a query that stands on the last position; 0 is no window."""
    return (window - 1, 0) if window else (-1, -1)


@functools.cache
def starts(batch: int, device: torch.device) -> torch.Tensor:
    """Offsets [batch + 1] of ragged queries of one token each."""
    return torch.arange(batch + 1, dtype=torch.int32, device=device)

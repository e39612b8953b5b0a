"""Rounding to the dtypes of a cache, in numpy alone: values stay float32, rounded to what the dtype holds."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

UNIT = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8_e4m3": 2.0**-4}
"""Unit roundoff: half the distance from 1 to the next number."""
SUBNORMAL = {"fp32": 2.0**-150, "fp16": 2.0**-25, "bf16": 2.0**-134, "fp8_e4m3": 2.0**-10}
"""Half the smallest number: the error of rounding near zero."""
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1}


def rounded(dtype: str, x: NDArray[np.floating]) -> Floats:
    """x, each number rounded to the nearest of the dtype, ties to even.

    Raises:
        ValueError: the dtype is not known.
    """
    x = x.astype(np.float32)
    if dtype == "fp32":
        return x
    if dtype == "fp16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = x.view(np.uint32)
        up = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
        bits = np.where(np.isnan(x), bits, bits + up)
        return (bits & np.uint32(0xFFFF0000)).view(np.float32)
    if dtype == "fp8_e4m3":
        values, middles = _e4m3()
        code = np.searchsorted(middles, np.abs(x))
        tie = (code < len(middles)) & (np.abs(x) == middles[np.minimum(code, len(middles) - 1)])
        code = np.where(tie & (code % 2 == 1), code + 1, code)
        return np.where(np.isnan(x), x, np.copysign(values[code], x)).astype(np.float32)
    raise ValueError(f"dtype {dtype!r}; known: {', '.join(UNIT)}")


def ties() -> Floats:
    """What an fp8_e4m3 cache cannot hold and bf16 can: the middles between its numbers, and larger ones."""
    return np.append(_e4m3()[1], np.array([456, 464, 480, 1000, 65536, 2.0**100], np.float32))


@cache
def _e4m3() -> tuple[Floats, Floats]:
    """The finite magnitudes by code (0 to 448), and the middles between neighbours."""
    codes = np.arange(127)
    exponent, fraction = codes >> 3, codes & 7
    small = fraction * 2.0**-9
    large = (8 + fraction) * 2.0 ** (exponent - 10.0)
    values = np.where(exponent == 0, small, large).astype(np.float32)
    return values, np.asarray((values[1:] + values[:-1]) / 2, np.float32)

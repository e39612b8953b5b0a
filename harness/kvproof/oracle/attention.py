"""Attention in float64, and how far a sound kernel may be from it.

The bound follows the arithmetic that kernels use: products and sums in float32, weights rounded to the
query's dtype (or the one that the subject declares) before they meet values of 16 bits and less, the output
rounded once. Sums of n terms are given
8 * sqrt(n) roundoffs (probabilistic error analysis: Higham and Mary, SIAM J. Sci. Comput. 41, 2019),
not n: a bound for the worst order would hide the loss of half the digits in a long sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.histories.payload import Inputs
from kvproof.oracle.floats import SUBNORMAL, UNIT

Doubles = NDArray[np.float64]

LAMBDA = 8.0
"""Roundoffs a term's square root: a sum passes it with a chance of exp(-32)."""
FUNCTIONS = 16.0
"""Roundoffs that exp, tanh and a merge of parts may add together."""


@dataclass(frozen=True)
class Expected:
    """The outcome of a call in float64, and the bounds of its error.

    out, bound: [rows or query tokens, query_heads, dim]. lse, lse_bound: [rows, query_heads]; -inf where
    nothing is seen. NaN where a token that is seen holds NaN: there a kernel may answer anything.
    """

    out: Doubles
    bound: Doubles
    lse: Doubles
    lse_bound: Doubles


def attention(given: Inputs) -> Expected:
    """What decode, or prefill where the setting has queries, must answer."""
    s = given.setting
    heads = s.kv_heads * s.group
    count = len(given.query)
    out = np.zeros((count, heads, s.head_size))
    bound, lse = np.zeros_like(out), np.full((count, heads), -np.inf)
    lse_bound = np.zeros_like(lse)
    starts = given.ends if given.ends is not None else np.arange(len(given.rows) + 1)
    for i, (seq, n) in enumerate(zip(given.rows, given.lens, strict=True)):
        lo, hi = int(starts[i]), int(starts[i + 1])
        if hi == lo or n == 0:
            continue
        last = n - (hi - lo) + np.arange(hi - lo)  # the last position that each query sees
        keys = given.keys[seq][given.first : given.first + n].astype(np.float64)
        values = given.values[seq][given.first : given.first + n].astype(np.float64)
        for h in range(s.kv_heads):
            own = slice(h * s.group, (h + 1) * s.group)
            q = given.query[lo:hi, own].astype(np.float64)
            found = _one_head(given, q, keys[:, h], values[:, h], last, own)
            for whole, part in zip((out, bound, lse, lse_bound), found, strict=True):
                whole[lo:hi, own] = part
    return Expected(out, bound, lse, lse_bound)


def _one_head(
    given: Inputs, q: Doubles, k: Doubles, v: Doubles, last: NDArray[np.int64], own: slice
) -> tuple[Doubles, Doubles, Doubles, Doubles]:
    """q [T, G, D], k and v [n, D] -> out, bound [T, G, D], lse, its bound [T, G]."""
    s, features = given.setting, given.setting.features
    u, unit = UNIT["fp32"], UNIT[s.query_dtype]
    k_scale, v_scale = features.get("k_scale", 1.0), features.get("v_scale", 1.0)
    n, dim = k.shape
    spoilt_k, spoilt_v = np.isnan(k).any(-1), np.isnan(v).any(-1)
    k, v = (np.where(np.isnan(x), 0, x) for x in (k, v))
    position = np.arange(n)
    factor = given.scale * k_scale
    scores = factor * (q @ k.T)
    size = abs(factor) * (np.abs(q) @ np.abs(k).T)
    error = u * ((LAMBDA * np.sqrt(dim) + 3) * size + 2 * np.abs(scores))
    cap = features.get("softcap", 0.0)
    if cap:
        scores = cap * np.tanh(scores / cap)
        error += FUNCTIONS * u * cap
    slopes = given.slopes()
    if slopes is not None:
        bias = slopes[own].astype(np.float64)[None, :, None] * (position - last[:, None])[:, None, :]
        scores = scores + bias
        error += 3 * u * np.abs(bias)
    seen = position <= last[:, None]
    window = int(features.get("window", 0))
    if window:
        seen &= position > last[:, None] - window
    scores = np.where(seen[:, None, :], scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(-1, keepdims=True)
    lse = (top + np.log(total))[..., 0]
    weights = weights / total
    with np.errstate(invalid="ignore"):
        away = np.where(weights > 0, np.abs(scores) + np.abs(top) + np.abs(scores - top), 0)
    relative = np.where(weights > 0, error + u * (2 * away + FUNCTIONS), 0)
    terms = LAMBDA * np.sqrt(n) * u + FUNCTIONS * u
    weights_dtype = s.weights or s.query_dtype
    half = 0.0 if weights_dtype == "fp32" else UNIT[weights_dtype]
    v = v * v_scale
    out = weights @ v
    mean = weights @ np.abs(v)
    wrong = weights * relative
    tiny = 0.0 if half == 0 else SUBNORMAL[weights_dtype]
    bound = (
        unit * np.abs(out)
        + SUBNORMAL[s.query_dtype] * (1 + np.abs(out))
        + wrong @ np.abs(v)
        + wrong.sum(-1, keepdims=True) * np.abs(out)
        + half * np.minimum(mean, LAMBDA * np.sqrt(np.square(weights) @ np.square(v)))
        + terms * (mean + np.abs(out))
        + tiny / total * np.abs(v).sum(0)
    )
    lse_bound = wrong.sum(-1) + terms + 4 * u * (1 + np.abs(lse) + np.abs(top[..., 0]))
    lse[(seen & spoilt_k).any(-1)] = np.nan
    out[(seen & (spoilt_k | spoilt_v)).any(-1)] = np.nan
    return out, bound, lse, lse_bound


def merged(parts: list[tuple[Doubles, Doubles]]) -> tuple[Doubles, Doubles]:
    """Output and lse of a whole from those of its parts; a part with lse -inf changes nothing."""
    lse = np.stack([part[1] for part in parts])
    top = np.where(np.isfinite(lse.max(0)), lse.max(0), 0.0)
    weights = np.exp(lse - top)
    total = weights.sum(0)
    held = np.where(weights[..., None] > 0, np.stack([part[0] for part in parts]) * weights[..., None], 0)
    out = held.sum(0) / np.where(total > 0, total, 1.0)[..., None]
    with np.errstate(divide="ignore"):
        return out, np.log(total) + top

"""The numbers that kernels are judged by: rounding, float64 attention, bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvproof.histories.kernels import call
from kvproof.histories.payload import inputs
from kvproof.oracle.attention import attention, merged
from kvproof.oracle.floats import UNIT, rounded
from kvproof.selftest.kernel_cases import case_of


@pytest.mark.parametrize("dtype", sorted(UNIT))
def test_rounding_is_that_of_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}.get(
        dtype, torch.float8_e4m3fn
    )
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.standard_normal(20000) * 10.0 ** rng.integers(-4, 3, 20000), np.arange(-300, 300) / 16]
    ).astype(np.float32)
    x = x[np.abs(x) < 440]
    expected = torch.from_numpy(x).to(kind).to(torch.float32).numpy()
    assert np.array_equal(rounded(dtype, x), expected)


@pytest.mark.parametrize("queries", [(), (5, 1, 2)])
@pytest.mark.parametrize(
    "features", [{}, {"softcap": 4.0, "alibi": 0.5, "window": 6.0, "k_scale": 0.5, "v_scale": 2.0}]
)
def test_oracle_is_attention_written_out(queries: tuple[int, ...], features: dict[str, float]) -> None:
    given = inputs(case_of(lengths=(9, 1, 5), queries=queries, features=features, head_size=8), call())
    found = attention(given)
    slopes = given.slopes()
    row = 0
    for seq, n in zip(given.rows, given.lens, strict=True):
        count = queries[seq] if queries else 1
        for i in range(count):
            last = n - count + i
            for h in range(8):
                q = given.query[row, h].astype(float)
                scores = []
                seen = range(max(0, last - 5 if features else 0), last + 1)
                for p in seen:
                    s = (
                        float(q @ given.keys[seq][p, h // 4].astype(float))
                        * given.scale
                        * features.get("k_scale", 1)
                    )
                    if features:
                        s = 4.0 * np.tanh(s / 4.0)
                    if slopes is not None:
                        s += float(slopes[h]) * (p - last)
                    scores.append(s)
                weights = np.exp(scores)
                values = given.values[seq][list(seen), h // 4] * features.get("v_scale", 1)
                assert np.allclose(found.out[row, h], weights @ values / weights.sum(), atol=1e-12)
                assert np.isclose(found.lse[row, h], np.log(weights.sum()), atol=1e-12)
            row += 1


def test_bound_tells_half_precision_from_single() -> None:
    """Sound float32 arithmetic stays far inside the bound; float16 sums are far outside."""
    given = inputs(case_of(lengths=(1500,), num_blocks=400, head_size=64, kv_heads=1, group=1), call())
    expected = attention(given)

    def margin(dtype: type[np.floating[Any]]) -> float:
        k, v, q = (
            given.keys[0][:, 0].astype(dtype),
            given.values[0][:, 0].astype(dtype),
            given.query[0, 0].astype(dtype),
        )
        scores = (k @ q) * dtype(given.scale)
        weights = np.exp(scores - scores.max())
        out = np.add.accumulate(weights[:, None] * v, axis=0, dtype=dtype)[-1] / weights.sum(dtype=dtype)
        return float((np.abs(out.astype(float) - expected.out[0, 0]) / expected.bound[0, 0]).max())

    assert margin(np.float32) < 0.3
    assert margin(np.float16) > 5


def test_merge_of_parts_and_of_nothing() -> None:
    rng = np.random.default_rng(0)
    out, lse = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 3))
    nothing = np.zeros_like(out), np.full_like(lse, -np.inf)
    same, sums = merged([(out, lse), nothing])
    assert np.allclose(same, out)
    assert np.allclose(sums, lse)
    zeros, none = merged([nothing, nothing])
    assert not zeros.any()
    assert np.isneginf(none).all()

"""The adapters to other people's kernels, on stand-ins that do what those document, in torch on the CPU."""

from __future__ import annotations

import importlib
import itertools
import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="kernels need torch")

from kvproof.contract import BadInput, Kernel  # noqa: E402
from kvproof.subjects import find  # noqa: E402

LENGTHS = (1, 300, 256)


def attention(
    q: Any, k_cache: Any, v_cache: Any, pages: list[list[int]], lengths: list[int], scale: float, **given: Any
) -> tuple[Any, Any]:
    """q [B, H, D], caches NHD; left: keys before the query that count, -1 all; lse of base e, [B, H]."""
    left, softcap, alibi = given.get("left", -1), given.get("softcap") or 0.0, given.get("alibi")
    outs, sums = [], []
    for row, ids, n in zip(q.float(), pages, lengths, strict=True):
        group = row.shape[0] // k_cache.shape[2]
        k, v = (
            c.float()[ids].flatten(0, 1)[:n].repeat_interleave(group, 1).transpose(0, 1)
            for c in (k_cache, v_cache)
        )
        scores = (k @ row[:, :, None])[..., 0] * scale * given.get("k_scale", 1.0)
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        back = torch.arange(n - 1, -1, -1)
        if alibi is not None:
            scores = scores - alibi[:, None] * back
        if left >= 0:
            scores = scores.masked_fill(back > left, -math.inf)
        outs.append((torch.softmax(scores, -1)[:, None] @ v)[:, 0] * given.get("v_scale", 1.0))
        sums.append(torch.logsumexp(scores, -1))
    return torch.stack(outs).to(q.dtype), torch.stack(sums)


def rows(table: Any, lengths: Any, size: int) -> list[list[int]]:
    return [t[: -(-n // size)].tolist() for t, n in zip(table, lengths.tolist(), strict=True)]


def with_kvcache(q: Any, k: Any, v: Any, table: Any, **given: Any) -> tuple[Any, Any]:
    """flash_attn_with_kvcache: q [B, 1, H, D], lse [B, H, 1]."""
    assert given["causal"]
    assert given["return_softmax_lse"]
    seq = given["cache_seqlens"]
    assert seq.dtype == torch.int32
    left, right = given["window_size"]
    assert right == (0 if left >= 0 else -1)
    out, lse = attention(
        q[:, 0],
        k,
        v,
        rows(table, seq, k.shape[1]),
        seq.tolist(),
        given["softmax_scale"],
        left=left,
        softcap=given["softcap"],
        alibi=given.get("alibi_slopes"),
    )
    return out[:, None], lse[:, :, None]


def varlen(q: Any, k: Any, v: Any, table: Any, **given: Any) -> tuple[Any, Any]:
    """flash_attn_varlen_func with pages: q [T, H, D], lse [H, T]."""
    assert given["causal"]
    assert given["max_seqlen_q"] == 1
    assert given["cu_seqlens_q"].tolist() == list(range(q.shape[0] + 1))
    seq = given["seqused_k"]
    assert given["max_seqlen_k"] >= int(seq.max())
    left = given["window_size"][0]
    pages = rows(table, seq, k.shape[1])
    out, lse = attention(
        q, k, v, pages, seq.tolist(), given["softmax_scale"], left=-1 if left is None else left,
        softcap=given["softcap"],
    )  # fmt: skip
    return out, lse.T


class Wrapper:
    """BatchDecodeWithPagedKVCacheWrapper: tables in CSR form, lse of base 2, no empty sequences."""

    def __init__(self, workspace: Any, layout: str, **given: Any) -> None:
        assert layout == "NHD"
        assert given["use_cuda_graph"]
        self.room = given["paged_kv_indices_buffer"].numel()

    def plan(
        self,
        indptr: Any,
        indices: Any,
        last: Any,
        heads: int,
        kv_heads: int,
        dim: int,
        size: int,
        **given: Any,
    ) -> None:
        assert {x.dtype for x in (indptr, indices, last)} == {torch.int32}
        assert indices.numel() <= self.room
        assert bool(((last >= 1) & (last <= size)).all())
        ends = indptr.tolist()
        self.pages = [indices[a:b].tolist() for a, b in itertools.pairwise(ends)]
        self.lengths = [(len(p) - 1) * size + n for p, n in zip(self.pages, last.tolist(), strict=True)]
        self.given = given

    def run(self, q: Any, caches: Any, return_lse: bool, **scales: Any) -> tuple[Any, Any]:
        assert return_lse
        scales |= {"left": self.given["window_left"], "softcap": self.given["logits_soft_cap"]}
        scale = self.given["sm_scale"]
        out, lse = attention(q, caches[0], caches[1], self.pages, self.lengths, scale, **scales)
        return out, lse / math.log(2)


@pytest.fixture(params=["flash_attn", "flash_attn_3", "flash_attn_4", "flashinfer", "vllm_kernel"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """Each adapter's kernel, with its package replaced."""

    def old(q: Any, k: Any, v: Any, block_table: Any, **given: Any) -> Any:
        return with_kvcache(q, k, v, block_table, **given)

    def new(q: Any, k: Any, v: Any, page_table: Any, **given: Any) -> Any:
        return with_kvcache(q, k, v, page_table, **given)

    def cute(q: Any, k: Any, v: Any, page_table: Any, return_lse: bool, **given: Any) -> Any:
        assert return_lse
        return varlen(q, k, v, page_table, **given)

    def theirs(
        q: Any, k: Any, v: Any, block_table: Any, fa_version: int, return_softmax_lse: bool, **given: Any
    ) -> Any:
        assert fa_version in (2, 3)
        assert return_softmax_lse
        return varlen(q, k, v, block_table, **given)

    members: dict[str, dict[str, Any]] = {
        "flash_attn": {"flash_attn_with_kvcache": old},
        "flash_attn_interface": {"flash_attn_with_kvcache": new},
        "flash_attn.cute": {},
        "flash_attn.cute.interface": {"flash_attn_varlen_func": cute},
        "flashinfer": {"BatchDecodeWithPagedKVCacheWrapper": Wrapper},
        "vllm": {},
        "vllm.vllm_flash_attn": {"flash_attn_varlen_func": theirs},
    }
    for name, found in members.items():
        module = ModuleType(name)
        vars(module).update(found)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    adapter = f"kvproof_impls.{request.param}.adapter"
    yield importlib.import_module(adapter).make()
    del sys.modules[adapter]  # it holds the stand-in


def inputs(kernel: Kernel, dtype: Any) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(5)
    size = 256 if 16 not in kernel.limits["block_sizes"] else 16
    width = -(-max(LENGTHS) // size)
    blocks = 3 * width
    q = torch.randn(3, 8, 64, generator=generator).to(torch.bfloat16)
    k, v = (torch.randn(blocks, size, 2, 64, generator=generator).to(dtype) for _ in "kv")
    table = torch.randperm(blocks, generator=generator).to(torch.int32).view(3, width)
    return q, k, v, table, torch.tensor(LENGTHS, dtype=torch.int32), 0.125


@pytest.mark.parametrize(
    "features",
    [
        {},
        {"softcap": 2.0},
        {"window": 40},
        {"window": 1},
        {"alibi": torch.linspace(0.01, 0.5, 8)},
        {"k_scale": 0.5, "v_scale": 2.0},
    ],
    ids=lambda f: "+".join(f) or "plain",
)
def test_adapters_say_what_the_contract_says(kernel: Kernel, features: dict[str, Any]) -> None:
    given = inputs(kernel, torch.bfloat16)
    if not set(features) <= set(kernel.limits["features"]):
        with pytest.raises(BadInput, match="feature is"):
            kernel.decode(*given, **features)
        return
    out, lse = kernel.decode(*given, **features)
    wanted, sums = find("torch_gather").factory()().decode(*given, **features)
    assert torch.allclose(out.float(), wanted.float(), atol=0.02, rtol=0.02)
    assert torch.allclose(lse, sums, atol=1e-3, rtol=1e-3)


def test_features_that_are_off_are_taken_by_all(kernel: Kernel) -> None:
    given = inputs(kernel, torch.bfloat16)
    off: dict[str, Any] = {"softcap": 0.0, "window": 0, "alibi": None, "k_scale": 1.0, "v_scale": 1.0}
    assert torch.equal(kernel.decode(*given, **off)[0], kernel.decode(*given)[0])


def test_adapters_refuse_what_is_outside_their_limits(kernel: Kernel) -> None:
    q, k, v, table, lengths, scale = inputs(kernel, torch.float32)
    with pytest.raises(BadInput, match="dtype is fp32; allowed: fp16, bf16"):
        kernel.decode(q.float(), k, v, table, lengths, scale)
    if 24 not in kernel.limits["head_sizes"]:
        q, k, v = (x[..., :24].bfloat16().contiguous() for x in (q, k, v))
        with pytest.raises(BadInput, match="head size is 24"):
            kernel.decode(q, k, v, table, lengths, scale)


def test_what_is_prepared_serves_other_queries(kernel: Kernel) -> None:
    if "prepare" not in kernel.capabilities:
        pytest.skip("plans nothing")
    planned: Any = kernel
    q, *rest = inputs(kernel, torch.float8_e4m3fn)
    step = planned.prepare(q, *rest)
    other = q.flip(0)
    assert torch.equal(step(other)[0], planned.decode(other, *rest)[0])
    with pytest.raises(BadInput, match="0 tokens"):
        planned.decode(q, *rest[:3], torch.tensor([0, 1, 2], dtype=torch.int32), 0.125)

"""The kernels as torch operators: what torch itself checks of an operator, and torch.compile, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kvproof_kernels import cpu, ops  # noqa: E402  (they import torch)
from kvproof_kernels.host_build import NoCompiler, compiler  # noqa: E402

LENGTHS = [0, 3, 16, 40]
COUNTS = [0, 1, 16, 5]


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        compiler()
    except NoCompiler as missing:
        pytest.skip(str(missing))


def places(dtype: Any = torch.float32, layout: str = "NHD") -> tuple[Any, ...]:
    """Caches of 12 blocks of 16 tokens, 2 KV heads of 64, a block table and lengths."""
    shape = (12, 16, 2, 64) if layout == "NHD" else (12, 2, 16, 64)
    generator = torch.Generator().manual_seed(1)
    k_cache, v_cache = (torch.randn(shape, generator=generator).to(dtype) for _ in "kv")
    table = torch.randperm(12, generator=generator).to(torch.int32).view(4, 3)
    return k_cache, v_cache, table, torch.tensor(LENGTHS, dtype=torch.int32)


def queries(count: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(count, 4, 64, generator=torch.Generator().manual_seed(2)).to(dtype)


def tokens(count: int) -> tuple[Any, Any]:
    both = queries(count)
    return both[:, :2].contiguous(), both[:, 2:].contiguous()


def ends() -> Any:
    return torch.tensor([0, *torch.tensor(COUNTS).cumsum(0).tolist()], dtype=torch.int32)


def features() -> dict[str, Any]:
    return {"softcap": 5.0, "alibi": torch.tensor([0.5, 0.25, 0.125, 0.0625]), "window": 20}


CALLS: dict[str, Callable[[], tuple[Any, Any, dict[str, Any]]]] = {
    "decode": lambda: (ops.paged_decode, (queries(4), *places(), 0.125), {}),
    "decode with features": lambda: (
        ops.paged_decode,
        (queries(4, torch.bfloat16), *places(torch.bfloat16, "HND"), 0.125),
        {"layout": "HND", **features()},
    ),
    "prefill": lambda: (ops.paged_prefill, (queries(22), ends(), *places(), 0.125), {}),
    "write": lambda: (
        ops.paged_write,
        (
            queries(3)[:, :2].contiguous(),
            queries(3)[:, 2:].contiguous(),
            *places()[:2],
            torch.tensor([5, -1, 99]),
        ),
        {},
    ),
    "copy_blocks": lambda: (ops.paged_copy_blocks, (list(places()[:2]), torch.tensor([[1, 2], [2, 3]])), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_torch_finds_nothing_wrong(call: str) -> None:
    operator, arguments, keywords = CALLS[call]()
    torch.library.opcheck(operator, arguments, keywords)


@pytest.mark.parametrize("keywords", [{}, features()], ids=["plain", "features"])
def test_decode_is_the_cpu_kernel(keywords: dict[str, Any]) -> None:
    arguments = (queries(4), *places(), 0.125)
    for got, want in zip(
        torch.ops.kvproof.paged_decode(*arguments, **keywords),
        cpu.decode(*arguments, **keywords),
        strict=True,
    ):
        assert torch.equal(got, want)


def test_compiled_without_a_graph_break() -> None:
    """A decode step as an engine has it: write the new token's KV, attend, use the result."""

    def step(q: Any, k: Any, v: Any, slots: Any, *rest: Any) -> Any:
        torch.ops.kvproof.paged_write(k, v, *rest[:2], slots)
        out, lse = torch.ops.kvproof.paged_decode(q, *rest, 0.125)
        return out * 2 + lse.exp().unsqueeze(-1)

    q, (k, v) = queries(4), tokens(4)
    k_cache, v_cache, table, lens = places()
    at = (lens - 1).clamp(min=0).long()
    slots = table.long().gather(1, (at // 16).unsqueeze(1)).squeeze(1) * 16 + at % 16
    slots[lens == 0] = -1
    caches = [(k_cache.clone(), v_cache.clone()) for _ in range(2)]
    want = step(q, k, v, slots, *caches[0], table, lens)
    compiled = torch.compile(step, fullgraph=True)
    got = compiled(q, k, v, slots, *caches[1], table, lens)
    torch.testing.assert_close(got, want)
    assert torch.equal(caches[0][0], caches[1][0])
    assert not torch.equal(caches[0][0], k_cache)


def test_a_bad_call_names_its_limit() -> None:
    k_cache, v_cache, table, lens = places()
    with pytest.raises(ValueError, match="block_table must be int32"):
        torch.ops.kvproof.paged_decode(queries(4), k_cache, v_cache, table.long(), lens, 0.125)

"""What a call asks of a kernel: its sizes, and the words in which a bad one is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kvproof_kernels.problem import (  # noqa: E402
    copy_problem,
    decode_problem,
    prefill_problem,
    write_problem,
)


def call(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "q": torch.zeros(2, 8, 64),
        "k_cache": torch.zeros(10, 16, 4, 64),
        "v_cache": torch.zeros(10, 16, 4, 64),
        "block_table": torch.zeros(2, 5, dtype=torch.int32),
        "seq_lens": torch.zeros(2, dtype=torch.int32),
        "scale": 0.125,
    }
    return arguments | changes


def caches(*shape: int) -> dict[str, Any]:
    return {name: torch.zeros(*shape) for name in ("k_cache", "v_cache")}


def test_sizes_and_strides() -> None:
    p = decode_problem(**call(), window=7, softcap=2)
    assert (p.batch, p.queries, p.query_heads, p.kv_heads, p.group, p.head_dim) == (2, 2, 8, 4, 2, 64)
    assert (p.blocks, p.block_size, p.table_columns, p.table_stride, p.max_len) == (10, 16, 5, 5, 80)
    assert (p.stride_block, p.stride_token, p.stride_head) == (4096, 256, 64)
    assert (p.dtype, p.query_dtype, p.scale, p.softcap, p.window) == ("fp32", "fp32", 0.125, 2.0, 7)
    assert (p.k_scale, p.v_scale, p.alibi) == (1.0, 1.0, None)
    p = decode_problem(**call(**caches(10, 4, 16, 64)), layout="HND")
    assert (p.block_size, p.kv_heads, p.stride_block, p.stride_token, p.stride_head) == (
        16,
        4,
        4096,
        64,
        1024,
    )


def test_views_are_taken_as_they_are() -> None:
    both = torch.zeros(10, 2, 16, 4, 64, dtype=torch.float16)
    table = torch.zeros(2, 9, dtype=torch.int32)[:, 2:6]
    p = decode_problem(
        **call(q=torch.zeros(2, 8, 64).half(), k_cache=both[:, 0], v_cache=both[:, 1], block_table=table)
    )
    assert (p.stride_block, p.table_stride, p.table_columns) == (8192, 9, 4)
    assert p.alignment == 64
    shifted = torch.zeros(10 * 4096 + 3)[3:].view(10, 16, 4, 64)
    assert decode_problem(**call(v_cache=shifted)).alignment == 4


def test_fp8_goes_with_bf16_queries() -> None:
    fp8 = {name: x.to(torch.float8_e4m3fn) for name, x in caches(10, 16, 4, 64).items()}
    p = decode_problem(**call(q=torch.zeros(2, 8, 64).bfloat16(), **fp8), k_scale=0.5)
    assert (p.dtype, p.query_dtype, p.k_scale) == ("fp8_e4m3", "bf16", 0.5)
    with pytest.raises(ValueError, match="q is of dtype fp32; allowed: bf16"):
        decode_problem(**call(**fp8))


BAD = [
    ({"layout": "NDH"}, "layout is 'NDH'; allowed: NHD, HND"),
    ({"q": torch.zeros(8, 64)}, r"q must be \[tokens, query_heads, dim\], not of shape \[8, 64\]"),
    ({"q": torch.zeros(8, 2, 64).transpose(0, 1)}, "q must be contiguous"),
    ({"q": torch.zeros(2, 8, 64).double()}, "q is of dtype torch.float64; allowed: fp32"),
    ({"q": torch.zeros(2, 8, 32)}, "q has head size 32, the caches 64"),
    ({"q": torch.zeros(2, 6, 64)}, "6 query heads are no multiple of 4 KV heads"),
    ({"q": torch.zeros(3, 8, 64)}, "q has 3 rows, seq_lens 2 entries"),
    ({"v_cache": torch.zeros(10, 16, 2, 64)}, "must have the same shape"),
    ({"v_cache": torch.zeros(10, 16, 4, 64).half()}, "must have the same dtype"),
    ({"v_cache": torch.zeros(10, 4, 16, 64).transpose(1, 2)}, "must have the same strides"),
    (caches(10, 257, 4, 64), "block size is 257; allowed: 1 to 256"),
    (caches(10, 16, 4, 60), "head size is 60; allowed: multiples of 8 up to 256"),
    (caches(10, 16, 4, 264), "head size is 264"),
    (caches(10, 16, 0, 64), "no KV heads"),
    ({name: x.transpose(1, 3) for name, x in caches(10, 64, 4, 16).items()}, "head dimension .* stride 1"),
    ({"block_table": torch.zeros(2, 5)}, "block_table must be int32, not float32"),
    ({"block_table": torch.zeros(3, 5, dtype=torch.int32)}, "block_table has 3 rows, seq_lens 2 entries"),
    ({"block_table": torch.zeros(5, 2, dtype=torch.int32).T}, "columns of block_table must have stride 1"),
    ({"seq_lens": torch.zeros(2, dtype=torch.int64)}, "seq_lens must be int32, not int64"),
    ({"seq_lens": torch.zeros(2, dtype=torch.int32, device="meta")}, "on one device: .*seq_lens on meta"),
    ({"scale": math.nan}, "scale must be finite, not nan"),
    ({"scale": "x"}, "scale must be a number, not 'x'"),
    ({"softcap": -1}, "softcap must be at least 0, not -1"),
    ({"window": -1}, r"window must be at least 0 \(0 is off\), not -1"),
    ({"window": 1.5}, "window must be an integer, not 1.5"),
    ({"k_scale": 0}, "k_scale must be greater than 0, not 0"),
    ({"alibi": torch.zeros(8).half()}, "alibi must be float32, not float16"),
    ({"alibi": torch.zeros(4)}, "alibi has 4 slopes; q has 8 heads"),
    ({"sinks": 1}, "unknown feature sinks; known: softcap, alibi, window, k_scale, v_scale"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_problem(**call(**changes))


def test_prefill() -> None:
    ends = torch.tensor([0, 3, 5], dtype=torch.int32)
    p = prefill_problem(**call(q=torch.zeros(5, 8, 64), cu_seqlens_q=ends))
    assert (p.batch, p.queries) == (2, 5)
    with pytest.raises(ValueError, match="cu_seqlens_q has 2 entries; 2 sequences need 3"):
        prefill_problem(**call(cu_seqlens_q=ends[:2]))


def test_write() -> None:
    k, cache, slots = torch.zeros(3, 4, 64), torch.zeros(10, 16, 4, 64), torch.zeros(3, dtype=torch.int64)
    p = write_problem(k, k, cache, cache, slots)
    assert (p.tokens, p.source_dtype, p.dtype, p.stride_block) == (3, "fp32", "fp32", 4096)
    for arguments, message in (
        ((k, k[:2], cache, cache, slots), "k and v must have the same shape and dtype"),
        ((k.half(), k.half(), cache, cache, slots), "k is of dtype fp16; allowed: fp32"),
        ((k, k, cache, cache, slots[:2]), "slot_mapping has 2 entries, k 3 tokens"),
        ((k, k, cache, cache, slots.int()), "slot_mapping must be int64, not int32"),
        (
            (k[:, :2].contiguous(), k[:, :2].contiguous(), cache, cache, slots),
            "the caches have 4 KV heads of 64",
        ),
        ((k, k, cache, cache, slots, "NHD", 2.0), "apply to bf16 into fp8_e4m3 only"),
    ):
        with pytest.raises(ValueError, match=message):
            write_problem(*arguments)


def test_copy() -> None:
    cache = torch.zeros(4, 2, 3)
    p = copy_problem([cache, torch.zeros(4, 8).half()[:, :5]], [(0, 3), [1, 2]])  # type: ignore[list-item]
    assert (p.pairs, p.block_bytes, p.stride_bytes) == (((0, 3), (1, 2)), (24, 10), (24, 16))
    for pairs, message in (([(0, 4)], r"block 4 is outside 0\.\.3"), ([(0, 1, 2)], "a pair is")):
        with pytest.raises(ValueError, match=message):
            copy_problem([cache], pairs)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a block of caches\[0\] must be contiguous"):
        copy_problem([cache.transpose(1, 2)], [])
    with pytest.raises(ValueError, match=r"caches\[0\] must be \[blocks, \.\.\.\]"):
        copy_problem([torch.zeros(4)], [])

"""What a call asks of a kernel: its tensors and features, checked against what is served.

Every kernel (CPU, CUDA, shim) takes its sizes from here, so that all refuse the same calls in the same
words. Only shapes, dtypes, strides and plain numbers are looked at: nothing here reads a tensor's data, so
that a call on a GPU stays asynchronous and can be captured in a graph.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, SupportsFloat, cast

Layout = Literal["NHD", "HND"]

DTYPES = {
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
    "torch.float8_e4m3fn": "fp8_e4m3",
}
ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8_e4m3": 1}
FEATURES = ("softcap", "alibi", "window", "k_scale", "v_scale")
MAX_HEAD_DIM = 256
MAX_BLOCK_SIZE = 256


@dataclass(frozen=True, eq=False, kw_only=True)
class PagedCache:
    """A K and a V cache of the same form: `blocks` blocks of `block_size` tokens.

    Strides are in elements and the same for K and V; those of a dimension of one entry are normalised.
    alignment: bytes, a power of two up to 64 that divides both addresses and every stride.
    """

    dtype: str
    layout: Layout
    blocks: int
    block_size: int
    kv_heads: int
    head_dim: int
    stride_block: int
    stride_token: int
    stride_head: int
    alignment: int
    k_scale: float
    v_scale: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem(PagedCache):
    """A call of decode or prefill.

    queries: query tokens in all, for decode one a sequence. table_stride: elements between two rows of the
    block table. max_len: tokens that a row of the table can hold. softcap and window: 0 is off.
    """

    batch: int
    queries: int
    query_heads: int
    query_dtype: str
    table_columns: int
    table_stride: int
    max_len: int
    scale: float
    softcap: float
    window: int
    alibi: Any | None

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.query_heads // self.kv_heads


@dataclass(frozen=True, eq=False, kw_only=True)
class WriteProblem(PagedCache):
    """A call of write: `tokens` tokens of source_dtype, stored divided by k_scale and v_scale."""

    tokens: int
    source_dtype: str


@dataclass(frozen=True, kw_only=True)
class CopyProblem:
    """A call of copy_blocks: pairs (source, target); of each cache a block's bytes, the stride in bytes."""

    pairs: tuple[tuple[int, int], ...]
    block_bytes: tuple[int, ...]
    stride_bytes: tuple[int, ...]


def _shape(name: str, tensor: Any, form: str, contiguous: bool = True) -> tuple[int, ...]:
    rank = form.count(",") + 1
    if tensor.dim() != rank:
        raise ValueError(f"{name} must be {form}, not of shape {list(tensor.shape)}")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous; its strides are {list(tensor.stride())}")
    return tuple(tensor.shape)


def _dtype(name: str, tensor: Any, allowed: Sequence[str]) -> str:
    found = DTYPES.get(str(tensor.dtype), str(tensor.dtype))
    if found not in allowed:
        raise ValueError(f"{name} is of dtype {found}; allowed: {', '.join(allowed)}")
    return found


def _integers(name: str, tensor: Any, form: str, dtype: str, contiguous: bool = True) -> tuple[int, ...]:
    if str(tensor.dtype) != f"torch.{dtype}":
        raise ValueError(f"{name} must be {dtype}, not {str(tensor.dtype).removeprefix('torch.')}")
    return _shape(name, tensor, form, contiguous)


def _same_device(**tensors: Any) -> None:
    devices = {name: str(tensor.device) for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"all tensors must be on one device: {where}")


def _number(name: str, value: object, least: float | None = None, above: float | None = None) -> float:
    try:
        number = float(cast("SupportsFloat", value))
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, not {number}")
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least:g}, not {number:g}")
    if above is not None and number <= above:
        raise ValueError(f"{name} must be greater than {above:g}, not {number:g}")
    return number


def _window(value: object) -> int:
    try:
        window = operator.index(cast("int", value))
    except TypeError:
        raise ValueError(f"window must be an integer, not {value!r}") from None
    if window < 0:
        raise ValueError(f"window must be at least 0 (0 is off), not {window}")
    return min(window, 2**31 - 1)


def _cache(k_cache: Any, v_cache: Any, layout: str, k_scale: object, v_scale: object) -> dict[str, Any]:
    if layout not in ("NHD", "HND"):
        raise ValueError(f"layout is {layout!r}; allowed: NHD, HND")
    form = "[blocks, block_size, kv_heads, dim]" if layout == "NHD" else "[blocks, kv_heads, block_size, dim]"
    shape = _shape("k_cache", k_cache, form, contiguous=False)
    _shape("v_cache", v_cache, form, contiguous=False)
    dtype = _dtype("k_cache", k_cache, tuple(ITEM_BYTES))
    for what in ("shape", "dtype"):
        k, v = getattr(k_cache, what), getattr(v_cache, what)
        if k != v:
            raise ValueError(f"k_cache and v_cache must have the same {what}, not {k} and {v}")
    token, head = (1, 2) if layout == "NHD" else (2, 1)
    blocks, block_size, kv_heads, head_dim = shape[0], shape[token], shape[head], shape[3]
    if not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise ValueError(f"block size is {block_size}; allowed: 1 to {MAX_BLOCK_SIZE}")
    if kv_heads < 1:
        raise ValueError("k_cache has no KV heads; at least 1 is needed")
    if not 8 <= head_dim <= MAX_HEAD_DIM or head_dim % 8:
        raise ValueError(f"head size is {head_dim}; allowed: multiples of 8 up to {MAX_HEAD_DIM}")
    # torch gives a dimension of one entry any stride; there is nothing to compare in it.
    strides = [
        [s if n > 1 else 0 for s, n in zip(x.stride(), shape, strict=True)] for x in (k_cache, v_cache)
    ]
    if strides[0] != strides[1]:
        raise ValueError(f"k_cache and v_cache must have the same strides, not {strides[0]} and {strides[1]}")
    if strides[0][3] != 1:
        raise ValueError(f"the head dimension of the caches must have stride 1, not {strides[0][3]}")
    steps = [s * ITEM_BYTES[dtype] for s in strides[0][:3]]
    bits = k_cache.data_ptr() | v_cache.data_ptr() | steps[0] | steps[1] | steps[2] | 64
    return {
        "dtype": dtype,
        "layout": layout,
        "blocks": blocks,
        "block_size": block_size,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "stride_block": strides[0][0],
        "stride_token": strides[0][token],
        "stride_head": strides[0][head],
        "alignment": bits & -bits,
        "k_scale": _number("k_scale", k_scale, above=0),
        "v_scale": _number("v_scale", v_scale, above=0),
    }


def _attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    seq_lens: Any,
    scale: object,
    layout: str,
    **features: Any,
) -> Problem:
    for name in features:
        if name not in FEATURES:
            raise ValueError(f"unknown feature {name}; known: {', '.join(FEATURES)}")
    alibi = features.get("alibi")
    _same_device(
        q=q, k_cache=k_cache, v_cache=v_cache, block_table=block_table, seq_lens=seq_lens, alibi=alibi
    )
    cache = _cache(k_cache, v_cache, layout, features.get("k_scale", 1.0), features.get("v_scale", 1.0))
    queries, query_heads, dim = _shape("q", q, "[tokens, query_heads, dim]")
    query_dtype = _dtype("q", q, ("bf16",) if cache["dtype"] == "fp8_e4m3" else (cache["dtype"],))
    if dim != cache["head_dim"]:
        raise ValueError(f"q has head size {dim}, the caches {cache['head_dim']}")
    if query_heads < 1 or query_heads % cache["kv_heads"]:
        raise ValueError(f"{query_heads} query heads are no multiple of {cache['kv_heads']} KV heads")
    (batch,) = _integers("seq_lens", seq_lens, "[sequences]", "int32")
    form = "[sequences, columns]"
    rows, columns = _integers("block_table", block_table, form, "int32", contiguous=False)
    if rows != batch:
        raise ValueError(f"block_table has {rows} rows, seq_lens {batch} entries; they must agree")
    if columns > 1 and block_table.stride(1) != 1:
        raise ValueError(f"the columns of block_table must have stride 1, not {block_table.stride(1)}")
    if alibi is not None:
        if str(alibi.dtype) != "torch.float32":
            raise ValueError(f"alibi must be float32, not {str(alibi.dtype).removeprefix('torch.')}")
        if _shape("alibi", alibi, "[query_heads]") != (query_heads,):
            raise ValueError(f"alibi has {alibi.shape[0]} slopes; q has {query_heads} heads")
    return Problem(
        **cache,
        batch=batch,
        queries=queries,
        query_heads=query_heads,
        query_dtype=query_dtype,
        table_columns=columns,
        table_stride=block_table.stride(0) if rows > 1 else columns,
        max_len=columns * cache["block_size"],
        scale=_number("scale", scale),
        softcap=_number("softcap", features.get("softcap", 0.0), least=0),
        window=_window(features.get("window", 0)),
        alibi=alibi,
    )


def decode_problem(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    seq_lens: Any,
    scale: object,
    layout: str = "NHD",
    **features: Any,
) -> Problem:
    """Check a call of decode (chapter section 3.2.2) and state its sizes.

    Args:
        q: [sequences, query_heads, dim], contiguous, of the caches' dtype (bf16 for fp8_e4m3 caches).
        k_cache: [blocks, block_size, kv_heads, dim] for NHD, [blocks, kv_heads, block_size, dim] for HND.
        v_cache: of k_cache's shape, dtype and strides.
        block_table: int32 [sequences, columns].
        seq_lens: int32 [sequences], in tokens.
        scale: what the products of q and k are multiplied by.
        layout: "NHD" or "HND".
        features: softcap, alibi (float32 [query_heads]), window, k_scale, v_scale.

    Raises:
        ValueError: names what does not fit and what is allowed.
    """
    problem = _attention(q, k_cache, v_cache, block_table, seq_lens, scale, layout, **features)
    if problem.queries != problem.batch:
        raise ValueError(f"q has {problem.queries} rows, seq_lens {problem.batch} entries; they must agree")
    return problem


def prefill_problem(
    q: Any,
    cu_seqlens_q: Any,
    k_cache: Any,
    v_cache: Any,
    block_table: Any,
    seq_lens: Any,
    scale: object,
    layout: str = "NHD",
    **features: Any,
) -> Problem:
    """Check a call of prefill: decode_problem's, with q [tokens, ...], cu_seqlens_q int32 [sequences + 1].

    Raises:
        ValueError: names what does not fit and what is allowed.
    """
    problem = _attention(q, k_cache, v_cache, block_table, seq_lens, scale, layout, **features)
    _same_device(q=q, cu_seqlens_q=cu_seqlens_q)
    (ends,) = _integers("cu_seqlens_q", cu_seqlens_q, "[sequences + 1]", "int32")
    if ends != problem.batch + 1:
        raise ValueError(
            f"cu_seqlens_q has {ends} entries; {problem.batch} sequences need {problem.batch + 1}"
        )
    return problem


def write_problem(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    slot_mapping: Any,
    layout: str = "NHD",
    k_scale: object = 1.0,
    v_scale: object = 1.0,
) -> WriteProblem:
    """Check a call of write.

    Args:
        k: [tokens, kv_heads, dim], contiguous, of the caches' dtype, or bf16 for fp8_e4m3 caches.
        v: of k's shape and dtype.
        k_cache: as for decode_problem.
        v_cache: as for decode_problem.
        slot_mapping: int64 [tokens], block * block_size + offset; -1 is skipped.
        layout: "NHD" or "HND".
        k_scale: bf16 to fp8 only: what k is divided by before it is stored.
        v_scale: the same for v.

    Raises:
        ValueError: names what does not fit and what is allowed.
    """
    _same_device(k=k, v=v, k_cache=k_cache, v_cache=v_cache, slot_mapping=slot_mapping)
    cache = _cache(k_cache, v_cache, layout, k_scale, v_scale)
    form = "[tokens, kv_heads, dim]"
    shape = _shape("k", k, form)
    allowed = ("bf16", "fp8_e4m3") if cache["dtype"] == "fp8_e4m3" else (cache["dtype"],)
    source = _dtype("k", k, allowed)
    if _shape("v", v, form) != shape or v.dtype != k.dtype:
        raise ValueError(
            "k and v must have the same shape and dtype, "
            f"not {k.dtype} {list(shape)} and {v.dtype} {list(v.shape)}"
        )
    if shape[1:] != (cache["kv_heads"], cache["head_dim"]):
        raise ValueError(
            f"k is {list(shape)}; the caches have {cache['kv_heads']} KV heads of {cache['head_dim']}"
        )
    if source == cache["dtype"] and (cache["k_scale"], cache["v_scale"]) != (1.0, 1.0):
        raise ValueError(f"k_scale and v_scale of a write apply to bf16 into fp8_e4m3 only, not to {source}")
    (slots,) = _integers("slot_mapping", slot_mapping, "[tokens]", "int64")
    if slots != shape[0]:
        raise ValueError(f"slot_mapping has {slots} entries, k {shape[0]} tokens; they must agree")
    return WriteProblem(**cache, tokens=shape[0], source_dtype=source)


def copy_problem(caches: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> CopyProblem:
    """Check a call of copy_blocks.

    Args:
        caches: tensors [blocks, ...] of one device; the entries of a block lie together.
        pairs: (source, target), two lists or rows of ints.

    Raises:
        ValueError: names what does not fit and what is allowed.
    """
    _same_device(**{f"caches[{i}]": cache for i, cache in enumerate(caches)})
    block_bytes, stride_bytes = [], []
    blocks = []
    for i, cache in enumerate(caches):
        if cache.dim() < 2:
            raise ValueError(f"caches[{i}] must be [blocks, ...], not of shape {list(cache.shape)}")
        inner = cache[0] if cache.shape[0] else cache
        if not inner.is_contiguous():
            raise ValueError(
                f"a block of caches[{i}] must be contiguous; its strides are {list(inner.stride())}"
            )
        blocks.append(cache.shape[0])
        block_bytes.append(inner.numel() * cache.element_size())
        stride_bytes.append(cache.stride(0) * cache.element_size())
    checked = []
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"a pair is (source, target), not {pair!r}")
        source, target = operator.index(pair[0]), operator.index(pair[1])
        for block in (source, target):
            if any(not 0 <= block < n for n in blocks):
                raise ValueError(f"pair ({source}, {target}): block {block} is outside 0..{min(blocks) - 1}")
        checked.append((source, target))
    return CopyProblem(pairs=tuple(checked), block_bytes=tuple(block_bytes), stride_bytes=tuple(stride_bytes))

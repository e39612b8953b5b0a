"""Kernels: attention over a paged KV cache, and the writes into it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable


class Limits(TypedDict, total=False):
    """What a kernel serves; a list that is left out is no limit. Outside it a call is BadInput.

    dtypes: of the cache: "fp32", "fp16", "bf16", "fp8_e4m3". The query has the same, bf16 with fp8.
    head_sizes: values of D. block_sizes: tokens a block. groups: query heads a KV head.
    features: keyword arguments of `decode` and `prefill` besides the plain ones: "softcap", "alibi",
        "window", "k_scale", "v_scale".
    devices: "cpu", "cuda"; the first is the one it is judged on.
    """

    dtypes: Sequence[str]
    head_sizes: Sequence[int]
    block_sizes: Sequence[int]
    groups: Sequence[int]
    features: Sequence[str]
    devices: Sequence[str]


DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3")
FEATURES = ("softcap", "alibi", "window", "k_scale", "v_scale")
DEVICES = ("cpu", "cuda")
_NAMES = {"dtypes": DTYPES, "features": FEATURES, "devices": DEVICES}


def wrong_limits(limits: Mapping[str, Any]) -> str:
    """What is wrong with the limits of a kernel, and what is allowed; "" if nothing."""
    allowed = list(Limits.__annotations__)
    for name, values in limits.items():
        if name not in allowed:
            return f"limits has {name!r}, which is not known; allowed: {', '.join(allowed)}"
        if isinstance(values, str) or not isinstance(values, Collection):
            return f"limits: {name} is {values!r}; a list is needed"
        for value in values:
            if name in _NAMES and value not in _NAMES[name]:
                return f"limits: {name} has {value!r}, which is not known; allowed: {', '.join(_NAMES[name])}"
            if name not in _NAMES and (not isinstance(value, int) or value < 1):
                return f"limits: {name} has {value!r}; allowed: whole numbers from 1 on"
    return ""


@runtime_checkable
class Kernel(Protocol):
    """Paged attention (chapter 3.2.2). Made by a factory `make()`; tensors are torch's.

    Shapes: q [B, Hq, D]; k_cache and v_cache [blocks, block_size, Hkv, D] with layout NHD, [blocks, Hkv,
    block_size, D] with HND; block_table [B, M] int32, padded with anything; seq_lens [B] int32, in
    tokens. Position p of row b is at block_table[b, p // block_size], offset p % block_size.
    Query head h reads KV head h // (Hq // Hkv).
    """

    capabilities: frozenset[str]
    """Of write, copy_blocks, prefill, prepare, graph, features, lse, empty; see specs/capabilities.toml."""
    layout: Literal["NHD", "HND"]
    limits: Limits

    def decode(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        **features: Any,
    ) -> tuple[Any, Any]:
        """Attention of one query token a sequence to its positions 0..seq_len-1.

        Args:
            scale: what the products of q and k are multiplied by before the softmax.
            features: softcap: float, scores become softcap * tanh(score / softcap), 0 is off.
                alibi: float32 [Hq], score += alibi[h] * (position - (seq_len - 1)).
                window: int, positions >= seq_len - window only, 0 is off.
                k_scale, v_scale: float, what the stored keys and values are multiplied by.

        Returns:
            out [B, Hq, D] of q's dtype, and lse [B, Hq] float32, the natural logarithm of the sum of
            exponentials of the scores; lse is None without the capability. With `empty` a row of length
            0 is zeros with lse -inf. Both may lie in memory that the next call uses again.

        Raises:
            BadInput: a shape or dtype outside `limits`; the message names the limit.
        """
        ...


class KernelOptions(Protocol):
    """Members behind a kernel's capabilities."""

    def write(self, k: Any, v: Any, k_cache: Any, v_cache: Any, slot_mapping: Any) -> None:
        """Store k and v [T, Hkv, D] into slots block * block_size + offset; int64 [T], -1 is skipped."""
        ...

    def copy_blocks(self, caches: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in every cache, one pair after another."""
        ...

    def prefill(
        self,
        q: Any,
        cu_seqlens_q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        **features: Any,
    ) -> tuple[Any, Any]:
        """Causal attention of several query tokens a sequence, whose KV is in the cache already.

        Row b's queries are q[cu_seqlens_q[b] : cu_seqlens_q[b + 1]] (q [T, Hq, D], cu_seqlens_q int32
        [B + 1]); they are its last positions: query i of n sees positions 0..seq_len - n + i. For it
        alibi and window count from that position. Returns out [T, Hq, D] and lse [T, Hq].
        """
        ...

    def prepare(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        **features: Any,
    ) -> Callable[[Any], tuple[Any, Any]]:
        """Do what is done once for many layers or steps, such as a plan; answers decode as a function of q.

        The benchmark times that function in place of `decode` and names it as prepared. Everything but
        the values of q and what the caches hold stays what it is here.
        """
        ...


class KernelFault(Exception):
    """Raised by adapters to instrumented kernels: a sanitizer has stopped the kernel.

    kind "memory" is a finding on KVP-KERN-006; "race" and "barrier" on KVP-KERN-008.
    """

    def __init__(self, kind: Literal["memory", "race", "barrier"], report: str) -> None:
        super().__init__(report)
        self.kind = kind

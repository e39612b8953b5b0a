"""Which prefill kernel of cuda/prefill.cuh a call needs, and how it is launched; as variant.py."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproof_kernels.variant import CPP_TYPES, HEAD_SIZES, ITEM_BYTES, Feature, Pointers, params

if TYPE_CHECKING:
    from kvproof_kernels.problem import Problem

THREADS = 128
TENSOR_ROWS = 64  # of a block of threads: query tokens times the query heads that share a KV head
LANES_ROWS = 16
WEIGHTS = 16 * 32
MAX_ROWS = 2**30


class PrefillParams(ctypes.Structure):
    """The struct of prefill.cuh, field by field; addresses are the device's, 0 is null."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("cu_seqlens_q", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("alibi", ctypes.c_void_p),
        ("table_stride", ctypes.c_longlong),
        ("stride_block", ctypes.c_uint),
        ("stride_token", ctypes.c_uint),
        ("stride_head", ctypes.c_uint),
        ("block_magic", ctypes.c_uint),
        ("block_size", ctypes.c_int),
        ("sequences", ctypes.c_int),
        ("queries", ctypes.c_int),
        ("query_heads", ctypes.c_int),
        ("kv_heads", ctypes.c_int),
        ("window", ctypes.c_int),
        ("score_scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("v_scale", ctypes.c_float),
    )


@dataclass(frozen=True, kw_only=True)
class PrefillVariant:
    """One instantiation of the prefill kernel: tensor cores for caches of 2 bytes, else multiply-adds."""

    kv: str
    query: str
    head_dim: int
    features: Feature = Feature.NONE

    header = "prefill.cuh"
    entry = "entry_prefill.cu"
    function = "kvproof_prefill"
    threads = THREADS

    @property
    def tensor(self) -> bool:
        """Are tensor cores used?"""
        return ITEM_BYTES[self.kv] == 2

    @property
    def name(self) -> str:
        """A short name for tables, such as "prefill bf16 128"."""
        words = ["prefill", self.kv, str(self.head_dim)]
        return " ".join(
            words + [str(flag.name).lower() for flag in Feature if flag and flag in self.features]
        )

    def _core(self, namespace: str = "") -> str:
        kv, query = (
            t if t == "float" else namespace + t for t in (CPP_TYPES[self.kv], CPP_TYPES[self.query])
        )
        if self.tensor:
            return f"{namespace}PrefillTensor<{kv}, {self.head_dim}, {int(self.features)}>"
        return f"{namespace}PrefillLanes<{kv}, {query}, {self.head_dim}, {int(self.features)}>"

    @property
    def name_expression(self) -> str:
        """The kernel's name in C++, for NVRTC."""
        return f"paged::paged_prefill<{self._core('paged::')}>"

    @property
    def defines(self) -> dict[str, str | int]:
        """Macros that make entry_prefill.cu this variant."""
        return {"KVPROOF_CORE": self._core()}

    @property
    def rows(self) -> int:
        """Rows of a block of threads."""
        return TENSOR_ROWS if self.tensor else LANES_ROWS

    @property
    def tile(self) -> int:
        """Tokens of K and V that are in shared memory together."""
        if self.tensor:
            return 32 if self.head_dim > 128 else 64
        return 16 if self.head_dim * ITEM_BYTES[self.kv] > 512 else 32

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of threads: two tiles, where their rows are, q and weights."""
        chunks = self.head_dim * ITEM_BYTES[self.kv] // 16
        pitch = chunks | 1 if chunks % 8 else chunks
        if self.tensor:
            own = TENSOR_ROWS * pitch * 16 if self.head_dim > 128 else 0
        else:
            own = (LANES_ROWS * self.head_dim + WEIGHTS) * 4
        return 2 * self.tile * 8 + 4 * self.tile * pitch * 16 + own

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Blocks of threads: enough however the query tokens are shared out among the sequences."""
        return problem.queries * problem.group // self.rows + problem.batch, problem.kv_heads, 1


def prefill_variant(problem: Problem) -> PrefillVariant:
    """The variant that serves a prefill call.

    Raises:
        ValueError: the head size is not served, or the cache's rows do not begin at multiples of 16 bytes.
    """
    if problem.head_dim not in HEAD_SIZES:
        sizes = ", ".join(map(str, HEAD_SIZES))
        raise ValueError(f"head size is {problem.head_dim}; the CUDA kernels serve {sizes}")
    if problem.alignment < 16:
        raise ValueError(
            f"the caches' addresses and strides are multiples of {problem.alignment} bytes; the CUDA kernels "
            "need multiples of 16"
        )
    features = Feature.SOFTCAP if problem.softcap else Feature.NONE
    if problem.alibi is not None:
        features |= Feature.ALIBI
    return PrefillVariant(
        kv=problem.dtype, query=problem.query_dtype, head_dim=problem.head_dim, features=features
    )


def prefill_params(problem: Problem, pointers: Pointers, cu_seqlens_q: int) -> PrefillParams:
    """What the kernel is handed.

    Raises:
        ValueError: a size is too large for the kernel.
    """
    if problem.queries * problem.group > MAX_ROWS:
        raise ValueError(
            f"{problem.queries} query tokens of {problem.group} heads a KV head; the CUDA kernel serves "
            f"at most {MAX_ROWS // problem.group} at once"
        )
    common = params(problem, pointers, splits=1)
    values = {name: getattr(common, name) for name, _ in PrefillParams._fields_ if hasattr(common, name)}
    return PrefillParams(**values, cu_seqlens_q=cu_seqlens_q, queries=problem.queries)

"""FlashInfer: `BatchDecodeWithPagedKVCacheWrapper`. Its plan, made on the host, is what `prepare` does.

It takes tables in CSR form, has no empty sequences, and its lse is of base 2. Without tensor cores it
serves groups of 1, 2, 3, 4 and 8; like the engines that use it, this adapter takes them from 4 on, and
for fp8.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from flashinfer import BatchDecodeWithPagedKVCacheWrapper

from kvproof.contract import BadInput, Limits
from kvproof_impls.baseline import checked

WORKSPACE = 128 << 20


class FlashInferKernel:
    """Caches of one layout, [blocks, block_size, kv_heads, dim] or [blocks, kv_heads, block_size, dim]."""

    capabilities = frozenset({"prepare", "features", "lse", "graph"})
    layout: Literal["NHD"] = "NHD"
    limits = Limits(
        dtypes=("fp16", "bf16", "fp8_e4m3"),
        head_sizes=(64, 128, 256),
        block_sizes=range(1, 257),
        features=("softcap", "window", "k_scale", "v_scale"),
        devices=("cuda",),
    )

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
        found = checked(self.limits, q, k_cache, v_cache, block_table, seq_lens, scale, **features)
        size, lengths = found.block_size, seq_lens.tolist()
        if min(lengths) < 1:
            raise BadInput("a sequence has 0 tokens; at least 1 is needed")
        counts = [-(-n // size) for n in lengths]
        indptr = torch.tensor([0, *counts]).cumsum(0).to(q.device, torch.int32)
        indices = torch.cat([row[:n] for row, n in zip(block_table, counts, strict=True)])
        last = (seq_lens - 1) % size + 1
        group, fp8 = found.query_heads // found.kv_heads, found.dtype == "fp8_e4m3"
        wrapper = BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(WORKSPACE, dtype=torch.uint8, device=q.device),
            self.layout,
            use_cuda_graph=True,
            use_tensor_cores=fp8 or group >= 4,
            paged_kv_indptr_buffer=torch.empty_like(indptr),
            paged_kv_indices_buffer=torch.empty_like(indices),
            paged_kv_last_page_len_buffer=torch.empty_like(last),
        )
        window = features.get("window", 0)
        wrapper.plan(
            indptr,
            indices,
            last,
            found.query_heads,
            found.kv_heads,
            found.head_dim,
            size,
            window_left=window - 1 if window else -1,
            logits_soft_cap=features.get("softcap") or None,
            q_data_type=q.dtype,
            kv_data_type=k_cache.dtype,
            sm_scale=scale,
        )
        scales = {name: features[name] for name in ("k_scale", "v_scale") if name in features}

        def attend(q: Any) -> tuple[Any, Any]:
            out, lse = wrapper.run(q, (k_cache, v_cache), return_lse=True, **scales)
            return out, lse * math.log(2)

        return attend

    def decode(self, q: Any, *rest: Any, **features: Any) -> tuple[Any, Any]:
        return self.prepare(q, *rest, **features)(q)


def make() -> FlashInferKernel:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return FlashInferKernel()

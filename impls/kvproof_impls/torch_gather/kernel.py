"""Paged attention in plain torch: gather a sequence's blocks, then attention as it is written in books.

One row at a time, in float32, over exactly the live positions: what is not gathered cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from kvproof.contract import BadInput, Limits
from kvproof_kernels import problem


class GatherKernel:
    """See contract.Kernel: the same shapes, dtypes and errors."""

    capabilities = frozenset({"write", "copy_blocks", "prefill", "features", "lse", "empty"})
    layout: Literal["NHD", "HND"] = "NHD"
    limits = Limits(
        dtypes=("fp32", "fp16", "bf16", "fp8_e4m3"),
        head_sizes=range(8, 257, 8),
        block_sizes=range(1, 257),
        features=("softcap", "alibi", "window", "k_scale", "v_scale"),
        devices=("cpu", "cuda"),
    )

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
        self.check(problem.decode_problem, q, k_cache, v_cache, block_table, seq_lens, scale, **features)
        ends = list(range(q.shape[0] + 1))
        return self.rows(q, ends, k_cache, v_cache, block_table, seq_lens, scale, features)

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
        self.check(
            problem.prefill_problem,
            q,
            cu_seqlens_q,
            k_cache,
            v_cache,
            block_table,
            seq_lens,
            scale,
            **features,
        )
        return self.rows(q, cu_seqlens_q.tolist(), k_cache, v_cache, block_table, seq_lens, scale, features)

    def write(self, k: Any, v: Any, k_cache: Any, v_cache: Any, slot_mapping: Any) -> None:
        self.check(problem.write_problem, k, v, k_cache, v_cache, slot_mapping)
        mapped = slot_mapping >= 0
        slots = slot_mapping[mapped]
        for cache, new in ((k_cache, k), (v_cache, v)):
            cache.flatten(0, 1)[slots] = self.stored(new[mapped], cache.dtype)

    def copy_blocks(self, caches: Sequence[Any], pairs: Sequence[tuple[int, int]]) -> None:
        for cache in caches:
            for source, target in pairs:
                cache[target].copy_(cache[source])

    # ------------------------------------------------------------ steps

    def stored(self, new: Any, dtype: Any) -> Any:
        """New tokens as a cache of this dtype holds them; torch makes NaN of what is too large for fp8."""
        return new.clamp(-448, 448).to(dtype) if dtype == torch.float8_e4m3fn else new.to(dtype)

    def check(self, form: Any, *arguments: Any, **features: Any) -> None:
        """Raise BadInput for what is not served."""
        try:
            form(*arguments, layout=self.layout, **features)
        except ValueError as error:
            raise BadInput(str(error)) from None

    def rows(
        self,
        q: Any,
        ends: Sequence[int],
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        features: dict[str, Any],
    ) -> tuple[Any, Any]:
        """Each row apart; row i's queries are q[ends[i] : ends[i + 1]]."""
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float32, device=q.device)
        for i, length in enumerate(seq_lens.tolist()):
            lo, hi = ends[i], ends[i + 1]
            if length == 0 or hi == lo:
                continue
            keys = self.gathered(k_cache, block_table[i], length) * features.get("k_scale", 1.0)
            values = self.gathered(v_cache, block_table[i], length) * features.get("v_scale", 1.0)
            found, lse[lo:hi] = self.attend(q[lo:hi].float(), keys, values, scale, features)
            out[lo:hi] = found.to(q.dtype)
        return out, lse

    def gathered(self, cache: Any, row: Any, length: int) -> Any:
        """The first `length` tokens of a row: [length, kv_heads, dim], float32."""
        blocks = row[: -(-length // cache.shape[1])].long()
        return self.blocks(cache, blocks).flatten(0, 1)[:length]

    def blocks(self, cache: Any, blocks: Any) -> Any:
        """[blocks, block_size, kv_heads, dim], float32."""
        if cache.dtype == torch.float8_e4m3fn:  # torch cannot index it
            return cache.view(torch.uint8)[blocks].view(cache.dtype).float()
        return cache[blocks].float()

    def attend(
        self, q: Any, keys: Any, values: Any, scale: float, features: dict[str, Any]
    ) -> tuple[Any, Any]:
        """q [T, Hq, D], keys and values [n, Hkv, D] -> out [T, Hq, D], lse [T, Hq]."""
        order = self.kv_heads(q.shape[1], keys.shape[1]).argsort(stable=True)
        grouped = q[:, order].unflatten(1, (keys.shape[1], -1)).transpose(0, 1)  # [Hkv, T, G, D]
        scores = self.scores(grouped, keys.permute(1, 2, 0)[:, None], scale)
        scores = self.shaped(scores.transpose(0, 1).flatten(1, 2), order, features)
        back = scores.unflatten(1, (keys.shape[1], -1)).transpose(0, 1)
        out, lse = self.softmax(back, values.transpose(0, 1)[:, None])
        found = torch.empty_like(q), torch.empty(q.shape[:2], device=q.device)
        found[0][:, order] = out.transpose(0, 1).flatten(1, 2)
        found[1][:, order] = lse.transpose(0, 1).flatten(1, 2)
        return found

    def kv_heads(self, heads: int, kv_heads: int) -> Any:
        """The KV head of each query head."""
        return torch.arange(heads) // (heads // kv_heads)

    def scores(self, q: Any, keys: Any, scale: float) -> Any:
        """q [Hkv, T, G, D], keys [Hkv, 1, D, n] -> [Hkv, T, G, n]."""
        return torch.matmul(q, keys) * scale

    def shaped(self, scores: Any, order: Any, features: dict[str, Any]) -> Any:
        """Scores [T, Hq, n] of query heads in this order, with the features and the mask."""
        if cap := features.get("softcap", 0.0):
            scores = cap * torch.tanh(scores / cap)
        distance = self.distance(scores.shape[0], scores.shape[2]).to(scores.device)
        if (slopes := features.get("alibi")) is not None:
            scores = scores + slopes[order][:, None] * distance[:, None]
        return scores.masked_fill(~self.seen(distance, features)[:, None], -torch.inf)

    def distance(self, queries: int, length: int) -> Any:
        """Position of the key less that of the query: [T, n]; the queries are the last positions."""
        return torch.arange(length) - torch.arange(length - queries, length)[:, None]

    def seen(self, distance: Any, features: dict[str, Any]) -> Any:
        """[T, n]: what each query may look at."""
        window = int(features.get("window", 0))
        return (distance <= 0) & (distance > -window) if window else distance <= 0

    def softmax(self, scores: Any, values: Any) -> tuple[Any, Any]:
        """scores [Hkv, T, G, n], values [Hkv, 1, n, D] -> [Hkv, T, G, D] and the log of sums [Hkv, T, G]."""
        lse = torch.logsumexp(scores, -1)
        return self.summed(torch.exp(scores - lse[..., None]), values, scores > -torch.inf), lse

    def summed(self, weights: Any, values: Any, seen: Any) -> Any:
        """Weights [Hkv, T, G, n] times values [Hkv, 1, n, D], of the tokens that each query sees."""
        if values.isfinite().all():
            return torch.matmul(weights, values)
        held = torch.where(seen[..., None], values[:, :, None], 0.0)  # 0 * NaN is NaN
        return torch.matmul(weights[..., None, :], held)[..., 0, :]

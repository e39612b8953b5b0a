"""torch's flex_attention over the whole pool, with a mask that knows whose page is whose."""

from typing import Any, Literal

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from kvproof.contract import BadInput, Limits
from kvproof_impls.baseline import asked
from kvproof_kernels import problem

DTYPES = ("fp32", "fp16", "bf16")
MOST_SLOTS = 1 << 17
"""Uncompiled, each row is multiplied with every slot of the pool."""
FEATURES = ("softcap", "alibi", "window")


class FlexKernel:
    """Not compiled: that takes minutes on a CPU, and the answer is the same."""

    capabilities = frozenset({"features", "lse"})
    layout: Literal["NHD", "HND"] = "NHD"
    limits = Limits(
        dtypes=DTYPES,
        head_sizes=(16, 32, 64, 128, 256),
        block_sizes=(8, 16, 32, 64, 128, 256),
        features=FEATURES,
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
        if wrong := sorted(set(asked(features)) - set(FEATURES)):
            raise BadInput(f"features {', '.join(wrong)}; allowed: {', '.join(FEATURES)}")
        try:
            found = problem.decode_problem(q, k_cache, v_cache, block_table, seq_lens, scale, **features)
        except ValueError as error:
            raise BadInput(str(error)) from None
        served = {"dtypes": found.dtype, "head_sizes": found.head_dim, "block_sizes": found.block_size}
        for name, value in served.items():
            allowed = dict(self.limits)[name]
            if value not in allowed:  # type: ignore[operator]
                raise BadInput(f"{name[:-1].replace('_', ' ')} is {value}; allowed: {allowed}")
        if found.blocks * found.block_size > MOST_SLOTS:
            raise BadInput(
                f"the pool has {found.blocks * found.block_size} slots; allowed: up to {MOST_SLOTS}"
            )
        size, batch = found.block_size, found.batch
        page = torch.full((batch, found.blocks), -1, device=q.device)
        for row, n in enumerate(seq_lens.tolist()):
            used = -(-n // size)
            page[row, block_table[row, :used].long()] = torch.arange(used, device=q.device)
        last, cap, slopes = seq_lens.long() - 1, found.softcap, found.alibi

        def position(row: Any, slot: Any) -> Any:
            return page[row, slot // size] * size + slot % size

        def seen(b: Any, h: Any, row: Any, slot: Any) -> Any:
            p = position(row, slot)
            inside = (page[row, slot // size] >= 0) & (p <= last[row])
            return inside & (p > last[row] - found.window) if found.window else inside

        def shaped(score: Any, b: Any, h: Any, row: Any, slot: Any) -> Any:
            score = cap * torch.tanh(score / cap) if cap else score
            return score + slopes[h] * (position(row, slot) - last[row]) if slopes is not None else score

        slots = found.blocks * size
        mask = create_block_mask(seen, None, None, batch, slots, device=q.device)
        keys, values = (c.flatten(0, 1).transpose(0, 1)[None] for c in (k_cache, v_cache))
        out, lse = flex_attention(
            q.transpose(0, 1)[None],
            keys,
            values,
            score_mod=shaped,
            block_mask=mask,
            scale=scale,
            enable_gqa=True,
            return_lse=True,
        )
        return out[0].transpose(0, 1).contiguous(), lse[0].transpose(0, 1).contiguous()


def make() -> FlexKernel:
    """Caches [blocks, block_size, kv_heads, dim]."""
    return FlexKernel()

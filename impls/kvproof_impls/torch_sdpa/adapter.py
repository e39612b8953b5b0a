"""torch's scaled_dot_product_attention on contiguous KV: the bar that paged kernels are held against."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.nn.functional import scaled_dot_product_attention

from kvproof.contract import BadInput, Limits
from kvproof_impls.baseline import asked
from kvproof_kernels import problem

DTYPES = ("fp32", "fp16", "bf16")


class SdpaKernel:
    """`prepare` gathers, and what it answers is SDPA alone. No lse and no features: torch has neither here.

    grouped: the query heads of a KV head are passed as query tokens of one head, which no user of
    `enable_gqa` has to know of and which is many times as fast in 16-bit types on a CPU.
    """

    layout: Literal["NHD", "HND"] = "NHD"
    limits = Limits(
        dtypes=DTYPES,
        head_sizes=range(8, 257, 8),
        block_sizes=range(1, 257),
        features=(),
        devices=("cpu", "cuda"),
    )

    def __init__(self, capabilities: frozenset[str], grouped: bool = False) -> None:
        self.capabilities = capabilities
        self.grouped = grouped

    def prepare(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        block_table: Any,
        seq_lens: Any,
        scale: float,
        **features: Any,
    ) -> Callable[[Any], tuple[Any, None]]:
        if features := asked(features):
            raise BadInput(f"features {', '.join(sorted(features))}: none is served")
        try:
            found = problem.decode_problem(q, k_cache, v_cache, block_table, seq_lens, scale)
        except ValueError as error:
            raise BadInput(str(error)) from None
        if found.dtype not in DTYPES:
            raise BadInput(f"dtype is {found.dtype}; allowed: {', '.join(DTYPES)}")
        lengths = seq_lens.tolist()
        if min(lengths, default=1) < 1:
            raise BadInput("a sequence has 0 tokens; at least 1 is needed")
        longest = max(lengths, default=0)
        keys = self.contiguous(k_cache, block_table, lengths, longest)
        values = self.contiguous(v_cache, block_table, lengths, longest)
        mask = None
        if min(lengths, default=0) < longest:
            mask = (torch.arange(longest, device=q.device) < seq_lens[:, None])[:, None, None]

        def attend(q: Any) -> tuple[Any, None]:
            rows = q.unflatten(1, (-1, found.group)) if self.grouped else q[:, :, None]
            out = scaled_dot_product_attention(
                rows, keys, values, attn_mask=mask, scale=scale, enable_gqa=not self.grouped
            )
            return out.reshape(q.shape), None

        return attend

    def contiguous(self, cache: Any, block_table: Any, lengths: list[int], longest: int) -> Any:
        """[B, Hkv, longest, D], zeros behind a sequence's end."""
        blocks = -(-longest // cache.shape[1])
        if min(lengths, default=0) == longest:
            gathered = cache[block_table[:, :blocks].long()].flatten(1, 2)[:, :longest]
            return gathered.transpose(1, 2).contiguous()
        made = cache.new_zeros(len(lengths), cache.shape[2], longest, cache.shape[3])
        for row, (table, n) in enumerate(zip(block_table, lengths, strict=True)):
            tokens = cache[table[: -(-n // cache.shape[1])].long()].flatten(0, 1)[:n]
            made[row, :, :n] = tokens.transpose(0, 1)
        return made

    def decode(self, q: Any, *rest: Any, **features: Any) -> tuple[Any, None]:
        return self.prepare(q, *rest, **features)(q)


def make() -> SdpaKernel:
    """As torch's manual has it; the KV is contiguous before the clock starts."""
    return SdpaKernel(frozenset({"prepare"}))


def make_grouped() -> SdpaKernel:
    """The fastest way to call it for grouped heads."""
    return SdpaKernel(frozenset({"prepare"}), grouped=True)


def make_gather() -> SdpaKernel:
    """Gather and SDPA in each call: paged attention without a paged kernel."""
    return SdpaKernel(frozenset())

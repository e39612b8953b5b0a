"""VARUN3WARE/Paged-Attention with the append of its beam search, which copies a shared block first."""

import torch

from kvproof_impls.varun_paged_attention.adapter import PagedKVCache, VarunManager


class BeamManager(VarunManager):
    def grow(self, cache: PagedKVCache, token: int) -> None:
        cache.cow_append(torch.zeros(1), torch.zeros(1))


make = BeamManager

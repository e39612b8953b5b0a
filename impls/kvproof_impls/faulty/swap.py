"""Planted faults of the host tier: SWAP."""

from __future__ import annotations

from kvproof.contract import OutOfBlocks
from kvproof_impls.reference.arrays import Int32
from kvproof_impls.reference.host import HostTier, Parked
from kvproof_impls.reference.manager import Manager

from .registry import fault


@fault(
    "KVP-SWAP-001",
    "swap-in pairs the host blocks with the device blocks in reverse",
    model="huggingface/transformers#45733",
)
def swapped_in_reverse(num_blocks: int, block_size: int) -> Manager:
    class ReversedTier(HostTier):
        def leave(self, row: int) -> Parked:
            parked = super().leave(row)
            return parked._replace(blocks=parked.blocks[::-1])

    class Faulty(Manager):
        host_type = ReversedTier

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-SWAP-001",
    "host blocks are free again before swap-in has read them",
    model="NVIDIA/TensorRT-LLM#9056",
)
class HostCopyOverwritten(Manager):
    class HastyTier(HostTier):
        def park(self, row: int, count: int, tokens: Int32 | None) -> Int32:
            blocks = super().park(row, count, tokens)
            self.pool.push(blocks[::-1])
            return blocks

        def leave(self, row: int) -> Parked:
            return self.parked.pop(row)

    host_type = HastyTier


@fault(
    "KVP-SWAP-002",
    "a swap-in that finds no room drops the sequence",
    model="guoqingbao/xinfer#405",
)
class FailedSwapInDrops(Manager):
    def swap_in(self, seq: int) -> None:
        try:
            super().swap_in(seq)
        except OutOfBlocks:
            self.free(seq)
            raise


@fault(
    "KVP-SWAP-002",
    "a swap-out that finds the host tier full keeps the part it got",
    model="lightseekorg/tokenspeed#767",
)
def full_host_keeps_its_part(num_blocks: int, block_size: int) -> Manager:
    class GreedyTier(HostTier):
        def park(self, row: int, count: int, tokens: Int32 | None) -> Int32:
            try:
                return super().park(row, count, tokens)
            except OutOfBlocks:
                self.pool.take(self.pool.available)
                raise

    class Faulty(Manager):
        host_type = GreedyTier

    return Faulty(num_blocks, block_size)

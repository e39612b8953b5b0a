"""Planted faults of block tables: TABLE, STEP, SELF, DATA, PROBE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvproof.contract import Block
from kvproof_impls.reference.arrays import Int32, Int64
from kvproof_impls.reference.domains import Domains
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.prefix import PrefixCache
from kvproof_impls.reference.storage import Storage
from kvproof_impls.reference.tables import Tables

from .registry import fault


@fault("KVP-TABLE-001", "a block is taken one token late", model="RBLN-SW/vllm-rbln#662")
def late_at_the_edge(num_blocks: int, block_size: int) -> Manager:
    class LateTables(Tables):
        def blocks_of(self, length: int) -> int:
            return max(1, super().blocks_of(length - 1))

    class Faulty(Manager):
        tables_type = LateTables

    return Faulty(num_blocks, block_size, caching=False)


@fault(
    "KVP-TABLE-001",
    "a block is taken one token early",
    model="chapter 3.2.1: tokens are derived from the table, so a new block comes early",
)
def early_at_the_edge(num_blocks: int, block_size: int) -> Manager:
    class EarlyTables(Tables):
        def blocks_of(self, length: int) -> int:
            return super().blocks_of(length + 1)

    class Faulty(Manager):
        tables_type = EarlyTables

    return Faulty(num_blocks, block_size, caching=False)


@fault(
    "KVP-TABLE-002",
    "copy-on-write leaves the old entry in the table",
    model="vllm-project/vllm#42273",
)
class StaleEntryAfterCopy(Manager):
    def _copy_on_write(self, row: int, index: int, target: int) -> None:
        source = self.tables.matrix.item(row, index)
        super()._copy_on_write(row, index, target)
        self.tables.matrix[row, index] = source

    def _release(self, blocks: Int32) -> None:
        super()._release(blocks[self.pool.state[blocks] > 0])


@fault(
    "KVP-TABLE-002",
    "one block is handed out twice within an allocation",
    model="NVIDIA/TensorRT-LLM#12648",
)
class BlockTwiceInATable(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        n = super().add(seq, tokens, keys)
        row = self.tables.row(seq)
        if self.tables.num_blocks[row] > n // self.block_size + 1:
            self._release(self.tables.blocks(row)[-1:].copy())
            self.tables.blocks(row)[-1] = self.tables.blocks(row)[-2]
            self.tables.set_length(row, self.tables.seq_lens.item(row))
        return n

    def _release(self, blocks: Int32) -> None:
        super()._release(np.unique(blocks)[::-1])


@fault(
    "KVP-TABLE-003",
    "a free moves the first block of a running sequence",
    model="sgl-project/mini-sglang#142",
)
class CompactedWhileRunning(Manager):
    def free(self, seq: int) -> None:
        super().free(seq)
        for row in self.tables.row_of.values():
            if self.tables.num_blocks[row] and self.pool.available:
                block = self.tables.matrix[row, :1].copy()
                self.tables.matrix[row, :1] = self.pool.take(1)
                self._release(block)
                self.tables.set_length(row, self.tables.seq_lens.item(row))
                return


@fault(
    "KVP-TABLE-004",
    "a position past the end is given the last slot again",
    model="vllm-project/vllm#54296",
)
class SlotsClamped(Manager):
    def slots(self, seq: int, lo: int, hi: int) -> list[int]:
        row = self.tables.live_row(seq)
        length = self.tables.seq_lens.item(row)
        positions = np.clip(np.arange(lo, hi), 0, length - 1)
        slots: list[int] = self.tables.slots(row, 0, length)[positions].tolist()
        return slots


@fault(
    "KVP-TABLE-005",
    "parent and child of a fork share one list",
    model="NVIDIA/TensorRT-LLM#15546",
)
def fork_shares_the_list(num_blocks: int, block_size: int) -> Manager:
    parents: dict[int, int] = {}

    class Faulty(Manager):
        def fork(self, parent: int, child: int) -> None:
            super().fork(parent, child)
            parents[child] = parent

        def table(self, seq: int) -> list[int]:
            parent = parents.get(seq, seq)
            return super().table(parent if parent in self.tables.row_of else seq)

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-TABLE-005",
    "table() returns a live view",
    model="ModelTC/lightllm: alloc returns a view of the free stack that a later free rewrites",
)
class TableIsAView(Manager):
    def table(self, seq: int) -> Any:
        return self.tables.blocks(self.tables.row(seq))


@fault("KVP-TABLE-006", "each append adds a block more than it needs", model="vllm-project/vllm#10730")
def table_keeps_growing(num_blocks: int, block_size: int) -> Manager:
    extra: dict[int, list[int]] = {}

    class Faulty(Manager):
        def append(self, seq: int, tokens: Sequence[int]) -> None:
            super().append(seq, tokens)
            if self.pool.available:
                extra.setdefault(seq, []).append(self.pool.take(1).item())

        def table(self, seq: int) -> list[int]:
            return super().table(seq) + extra.get(seq, [])

        def free(self, seq: int) -> None:
            super().free(seq)
            self.pool.push(np.array(extra.pop(seq, []), np.int32))

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-STEP-001",
    "a decode step that does not fit leaves half of it appended",
    model="VARUN3WARE/Paged-Attention: a failed batch append keeps the part it got",
)
class HalfAStep(Manager):
    def append_batch(self, seqs: Sequence[int], tokens: Sequence[int]) -> Int64:
        rows = self.tables.rows(seqs)
        for seq, token in zip(seqs, tokens, strict=True):
            self.append(seq, [token])
        return self.tables.last_slot[rows]


@fault(
    "KVP-STEP-001",
    "a decode step accepts a sequence that is listed twice",
    model="sgl-project/sglang-jax#20",
)
class DuplicatesInAStep(Manager):
    def append_batch(self, seqs: Sequence[int], tokens: Sequence[int]) -> Int64:
        last = dict(zip(seqs, tokens, strict=True))
        return super().append_batch(list(last), list(last.values()))


@fault(
    "KVP-SELF-001",
    "who uses a key domain is counted up and never down",
    model="ovg-project/kvcached#362",
)
def domain_never_left(num_blocks: int, block_size: int) -> Manager:
    class Hoarding(Domains):
        def leave(self, root: int) -> None:
            pass

    class HoardingCache(PrefixCache):
        domains_type = Hoarding

    class Faulty(Manager):
        prefix_type = HoardingCache

    return Faulty(num_blocks, block_size)


@fault("KVP-DATA-001", "each block copy is one slot short", model="vllm-project/vllm#43996")
def copy_one_slot_short(num_blocks: int, block_size: int) -> Manager:
    class ShortStorage(Storage):
        def copy(self, pairs: Sequence[tuple[Block, Block]]) -> None:
            if self._device is not None:
                for source, target in pairs:
                    super().copy([])
                    self._row(target)[:-1] = self._row(source)[:-1]

    manager = Manager(num_blocks, block_size)
    manager.storage = ShortStorage(num_blocks, block_size)
    return manager


@fault(
    "KVP-PROBE-001",
    "can_append looks for the block edge behind the token, append before it",
    model="jianzhnie/mini-vllm: can_append is true, append raises",
)
class ProbeAtTheWrongEdge(Manager):
    def can_append(self, seq: int, n: int = 1) -> bool:
        length = self.tables.seq_lens.item(self.tables.live_row(seq)) + n
        return length % self.block_size != 0 or self.pool.available > 0


@fault(
    "KVP-PROBE-001",
    "can_append forgets the block for a copy",
    model="NVIDIA/TensorRT-LLM#15065",
)
class ProbeForgetsTheCopy(Manager):
    def can_append(self, seq: int, n: int = 1) -> bool:
        row = self.tables.live_row(seq)
        total = self.tables.blocks_of(self.tables.seq_lens.item(row) + n)
        return total - self.tables.num_blocks.item(row) <= self.pool.available


@fault(
    "KVP-PROBE-001",
    "can_add counts the free list and not what can be evicted",
    model="ubermenchh/mini-vllm: the probe counts the free list and not the idle cached blocks",
)
class ProbeCountsTheFreeList(Manager):
    def can_add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> bool:
        return self.tables.blocks_of(len(tokens)) <= self.pool.free and super().can_add(seq, tokens, keys)

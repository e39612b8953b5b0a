"""Planted faults of sharing: SHARE and TRUNC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvproof.contract import Block, OutOfBlocks, Refused
from kvproof_impls.reference.arrays import Int32, Int64
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.prefix import PrefixCache
from kvproof_impls.reference.tables import Moves, Tables

from .registry import fault


def recycle(manager: Manager, blocks: Int32) -> None:
    """Put blocks into the free list, whoever holds them."""
    if manager.prefix:
        manager.prefix.forget(blocks[manager.prefix.key[blocks] != 0])
    manager.pool.push(blocks)


@fault("KVP-SHARE-001", "a fork copies every block", model="huggingface/transformers#46117")
class ForkCopiesAll(Manager):
    def fork(self, parent: int, child: int) -> None:
        count = self.tables.num_blocks.item(self.tables.live_row(parent))
        if count > self.pool.available:
            raise OutOfBlocks(f"{count} blocks needed")
        super().fork(parent, child)
        row = self.tables.row(child)
        for index, target in enumerate(self.pool.take(count).tolist()):
            self._copy_on_write(row, index, target)
        self.tables.set_length(row, self.tables.seq_lens.item(row))


@fault(
    "KVP-SHARE-001",
    "a fork counts two references for each block it shares",
    model="vllm-project/vllm#417",
)
class ForkCountsTwice(Manager):
    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        self.pool.retain(self.tables.blocks(self.tables.row(child)))


@fault(
    "KVP-SHARE-002",
    "an append writes into the shared tail without a copy",
    model="VARUN3WARE/Paged-Attention: parent and child write the same slot on the batched path",
)
def shared_tail_written(num_blocks: int, block_size: int) -> Manager:
    class CarelessTables(Tables):
        def moves(self, rows: Sequence[int], owners: Int32) -> Moves:
            return []

    class Faulty(Manager):
        tables_type = CarelessTables

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-SHARE-002",
    "the copy of a shared tail takes one slot too few",
    model="vllm-project/vllm-ascend#16013",
)
class TailCopiedOneShort(Manager):
    def _copy_on_write(self, row: int, index: int, target: int) -> None:
        last = (self.tables.computed.item(row) - 1) % self.block_size
        kept = self.storage.read(target, last)
        super()._copy_on_write(row, index, target)
        self.storage.write(target, last, kept)


@fault(
    "KVP-SHARE-003",
    "the roll-back of an append keeps the fresh copy and takes a reference from the tail",
    model="SohamDutta02/paged-kv-cache: after a roll-back the tail has one reference less than owners",
)
class RollBackHalfDone(Manager):
    def append(self, seq: int, tokens: Sequence[int]) -> None:
        try:
            super().append(seq, tokens)
        except (OutOfBlocks, Refused):
            row = self.tables.live_row(seq)
            moves = self.tables.moves([row], self.pool.state)
            for _, index in moves[: self.pool.available]:
                self.pool.take(1)
                self.pool.state[self.tables.matrix[row, index]] -= 1
            raise


@fault(
    "KVP-SHARE-003",
    "a fork that finds no block for its copy of the tail keeps the references it took",
    model="Leul-Negash/paged-attention-from-scratch: a failed fork leaks the blocks it had taken",
)
class FailedForkKeepsReferences(Manager):
    def fork(self, parent: int, child: int) -> None:
        row = self.tables.live_row(parent)
        partial = self.tables.seq_lens.item(row) % self.block_size
        if partial and not self.pool.available:
            self.pool.retain(self.tables.blocks(row))
            raise OutOfBlocks("no block for the tail of the child")
        super().fork(parent, child)
        if partial:
            row = self.tables.row(child)
            self._copy_on_write(row, self.tables.num_blocks.item(row) - 1, self.pool.take(1).item())
            self.tables.set_length(row, self.tables.seq_lens.item(row))


@fault("KVP-SHARE-004", "the last reader of a tail copies it too", model="vllm-project/vllm#417")
def last_reader_copies(num_blocks: int, block_size: int) -> Manager:
    class EagerTables(Tables):
        def moves(self, rows: Sequence[int], owners: Int32) -> Moves:
            return [(row, index) for row in rows for index in self.open(row)]

    class Faulty(Manager):
        tables_type = EagerTables

        def _copy_on_write(self, row: int, index: int, target: int) -> None:
            source = self.tables.matrix[row, index : index + 1].copy()
            super()._copy_on_write(row, index, target)
            if not self.pool.state[source[0]]:
                self.pool.state[source] = 1
                self._release(source)

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-SHARE-005",
    "the first of two sharers to go recycles what the other still reads",
    model="Wenyueh/MinivLLM: the first owner's free recycles a block that a sharer lists",
)
class FirstFreeRecycles(Manager):
    def free(self, seq: int) -> None:
        blocks = self.tables.blocks(self.tables.row(seq)).copy()
        super().free(seq)
        recycle(self, blocks[self.pool.state[blocks] > 0])


@fault("KVP-SHARE-006", "copies() leaves the last copy out", model="xLLM-AI/xllm#1984")
class CopyLeftOut(Manager):
    def copies(self) -> list[tuple[Block, Block]]:
        return super().copies()[:-1]


@fault(
    "KVP-SHARE-006",
    "copies() is in reverse, in a step that uses a copied block again as a target",
    model="vllm-project/vllm#3834",
)
def copies_in_reverse(num_blocks: int, block_size: int) -> Manager:
    class EagerTables(Tables):
        def moves(self, rows: Sequence[int], owners: Int32) -> Moves:
            return [(r, i) for r in rows for i in self.open(r) if owners[self.matrix[r, i]] > 1]

    class Faulty(Manager):
        tables_type = EagerTables

        def _make_own(self, rows: Sequence[int], moves: Moves, blocks: Int32) -> None:
            self.pool.push(blocks[::-1])
            for row, index in moves:
                source = self.tables.matrix[row, index : index + 1].copy()
                super()._make_own([row], [(row, index)], self.pool.take(1))
                self.pool.push(source[self.pool.state[source] == 0])

        def copies(self) -> list[tuple[Block, Block]]:
            return super().copies()[::-1]

    manager = Faulty(num_blocks, block_size)
    manager.capabilities -= {"data"}  # so that the harness copies as it is told
    return manager


@fault(
    "KVP-SHARE-007",
    "a prefix hit on a block that somebody reads is not counted",
    model="NVIDIA/TensorRT-LLM#12648",
)
class HitNotCounted(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        n = super().add(seq, tokens, keys)
        hit = self.tables.blocks(self.tables.row(seq))[: n // self.block_size]
        self.pool.state[hit[self.pool.state[hit] > 1]] -= 1
        return n

    def _release(self, blocks: Int32) -> None:
        super()._release(blocks[self.pool.state[blocks] > 0])


@fault(
    "KVP-TRUNC-001",
    "truncate puts the blocks it drops into the free list though others read them",
    model="vllm-project/vllm#18668",
)
class TruncateFreesShared(Manager):
    def truncate(self, seq: int, length: int) -> None:
        before = self.tables.blocks(self.tables.row(seq)).copy()
        super().truncate(seq, length)
        dropped = before[self.tables.blocks_of(length) :]
        recycle(self, dropped[self.pool.state[dropped] > 0])


@fault(
    "KVP-TRUNC-001",
    "truncate gives the block back in which the new end lies",
    model="lablup/mlxcel#1760",
)
class TruncateGivesBackTooMuch(Manager):
    def truncate(self, seq: int, length: int) -> None:
        super().truncate(seq, length)
        if length % self.block_size:
            recycle(self, self.tables.blocks(self.tables.row(seq))[-1:].copy())


@fault(
    "KVP-TRUNC-001",
    "a published block that truncate has cut is written again under its old identity",
    model="sgl-project/sglang#38941",
)
def cut_block_keeps_identity(num_blocks: int, block_size: int) -> Manager:
    class TrustingCache(PrefixCache):
        def _same(self, blocks: Any, tokens: Int32, parents: Int64) -> Any:
            return self.key.take(blocks) != 0

    class Faulty(Manager):
        prefix_type = TrustingCache

        def _make_own(self, rows: Sequence[int], moves: Moves, blocks: Int32) -> None:
            for (row, index), target in zip(moves, blocks.tolist(), strict=True):
                self._copy_on_write(row, index, target)
            for row in rows:
                self.tables.set_length(row, self.tables.seq_lens.item(row))
                self.tables.shared[row] = False

    return Faulty(num_blocks, block_size)

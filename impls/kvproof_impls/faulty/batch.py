"""Planted faults of what workers are given: BATCH, SLOT, SIZE, WIRE."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvproof_impls.reference.arrays import Int32
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.tables import PAD, Tables

from .registry import fault

Batch = tuple[Int32, Int32, Int32]


@fault(
    "KVP-BATCH-001",
    "rows are padded with the id of a live block, not with the declared pad",
    model="NVIDIA/Megatron-LM#5950",
)
class PaddedWithALiveId(Manager):
    def batch(self, seqs: Sequence[int]) -> Batch:
        table, counts, lengths = super().batch(seqs)
        return np.maximum(table, 0), counts, lengths


@fault("KVP-BATCH-001", "block counts stand for token counts", model="ROCm/aiter#5591")
class BlockCountsForTokens(Manager):
    def batch(self, seqs: Sequence[int]) -> Batch:
        table, counts, _ = super().batch(seqs)
        return table, counts, counts


@fault(
    "KVP-BATCH-002",
    "a row that is used again keeps the tail of its former owner",
    model="tenstorrent/vllm-tt-plugin#103",
)
def tail_of_the_former_owner(num_blocks: int, block_size: int) -> Manager:
    class UncleanTables(Tables):
        def shrink(self, row: int, count: int) -> None:
            self.num_blocks[row] = count

    class Faulty(Manager):
        tables_type = UncleanTables

    return Faulty(num_blocks, block_size)


@fault("KVP-BATCH-003", "the rows are sorted by id", model="tenstorrent/tt-xla#5799")
class RowsSorted(Manager):
    def batch(self, seqs: Sequence[int]) -> Batch:
        return super().batch(sorted(seqs))


def with_rows(batch: Batch, rows: Sequence[Sequence[int]]) -> Batch:
    """The batch with these tables in place of its own."""
    table = np.full_like(batch[0], PAD)
    for i, row in enumerate(rows):
        kept = row[: table.shape[1]]
        table[i, : len(kept)] = kept
    return table, batch[1], batch[2]


@fault(
    "KVP-BATCH-004",
    "entries taken in a step whose batch was never asked for are not sent later",
    model="vllm-project/vllm#42273",
)
def delta_dropped(num_blocks: int, block_size: int) -> Manager:
    worker: dict[int, list[int]] = {}
    fresh: dict[int, list[int]] = {}

    class Faulty(Manager):
        def append(self, seq: int, tokens: Sequence[int]) -> None:
            fresh.clear()
            count = len(self.table(seq))
            super().append(seq, tokens)
            fresh[seq] = self.table(seq)[count:]

        def free(self, seq: int) -> None:
            super().free(seq)
            worker.pop(seq, None)

        def batch(self, seqs: Sequence[int]) -> Batch:
            batch = super().batch(seqs)
            for seq in seqs:
                worker[seq] = worker[seq] + fresh.pop(seq, []) if seq in worker else self.table(seq)
            return with_rows(batch, [worker[seq] for seq in seqs])

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-BATCH-004",
    "the blocks of an id that comes back are appended to its old ones",
    model="vllm-project/vllm#46595",
)
def resumed_is_appended(num_blocks: int, block_size: int) -> Manager:
    old: dict[int, list[int]] = {}

    class Faulty(Manager):
        def free(self, seq: int) -> None:
            table = self.table(seq)
            super().free(seq)
            old[seq] = table

        def batch(self, seqs: Sequence[int]) -> Batch:
            return with_rows(super().batch(seqs), [old.get(seq, []) + self.table(seq) for seq in seqs])

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-BATCH-004",
    "a worker gets the last token only, whatever is to be computed",
    model="KKKZOZ/nano-vllm: a resumed sequence reaches the workers without its tokens",
)
class LastTokenSent(Manager):
    def wire(self, seq: int) -> list[int]:
        return super().wire(seq)[-1:]


@fault(
    "KVP-BATCH-005", "a full last block has 0 tokens in the ragged form", model="flashinfer-ai/flashinfer#725"
)
class FullLastBlockIsEmpty(Manager):
    def csr(self, seqs: Sequence[int]) -> Batch:
        indptr, indices, last = super().csr(seqs)
        return indptr, indices, last % self.block_size


@fault(
    "KVP-BATCH-006",
    "each batch is written again, entry by entry",
    model="vllm-project/vllm#47936",
)
class BatchRebuilt(Manager):
    def batch(self, seqs: Sequence[int]) -> Batch:
        batch = super().batch(seqs)
        table = np.full_like(batch[0], PAD)
        for i, seq in enumerate(seqs):
            for j, block in enumerate(self.table(seq)):
                table[i, j] = block
        return table, batch[1], batch[2]


@fault(
    "KVP-SLOT-001",
    "slots are counted on from the first, not looked up",
    model="huggingface/text-generation-inference#2711",
)
class LastSlotPlusOne(Manager):
    def slots(self, seq: int, lo: int, hi: int) -> list[int]:
        slots = super().slots(seq, lo, hi)
        return [slots[0] + i for i in range(len(slots))]


@fault("KVP-SIZE-001", "the bytes of a block leave out the layers", model="vllm-project/vllm#36691")
class LayersLeftOut(Manager):
    def blocks_for(self, memory: int, share: float, reserved: int, **shape: Any) -> int:
        return super().blocks_for(memory, share, reserved, **{**shape, "layers": 1})


@fault("KVP-SIZE-001", "the part of a block that is left counts as one", model="NVIDIA/TensorRT-LLM#13619")
class SizeRoundedUp(Manager):
    def blocks_for(self, memory: int, share: float, reserved: int, **shape: Any) -> int:
        size = 2 * self.block_size
        for factor in shape.values():
            size *= factor
        return super().blocks_for(memory, share, reserved, **shape) + (
            int(memory * share - reserved) % size > 0
        )


@fault(
    "KVP-SIZE-002",
    "table memory counts the entries and not what is held for them",
    model="none known",
)
class EntriesCounted(Manager):
    def table_bytes(self) -> int:
        return 4 * int(self.tables.num_blocks.sum())


@fault(
    "KVP-WIRE-001",
    "the checksum of a message is not looked at",
    model="none known",
)
class ChecksumIgnored(Manager):
    def decode_tables(self, data: bytes) -> list[tuple[int, int, list[int]]]:
        body = data[:-4]
        return super().decode_tables(body + zlib.crc32(body).to_bytes(4, "little"))


@fault(
    "KVP-WIRE-001",
    "messages carry no length, so one that is cut short is taken for a shorter one",
    model="none known",
)
class ShortRowAccepted(Manager):
    def encode_tables(self, seqs: Sequence[int]) -> bytes:
        rows = [[seq, self.tables.seq_lens.item(self.tables.row(seq)), *self.table(seq)] for seq in seqs]
        return b"".join(np.array([len(row), *row], "<u4").tobytes() for row in rows)

    def decode_tables(self, data: bytes) -> list[tuple[int, int, list[int]]]:
        words = np.frombuffer(data[: len(data) // 4 * 4], "<u4").tolist()
        rows = []
        while len(words) > 2:
            seq, length, *table = words[1 : 1 + words[0]]
            rows.append((seq, length, table))
            words = words[1 + words[0] :]
        return rows

"""Planted faults of bad input: ERR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvproof.contract import UnknownSequence
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.tables import Tables

from .registry import fault


@fault("KVP-ERR-001", "an add of a live id takes its place", model="vllm-project/vllm#51637")
class DuplicateOverwrites(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        if seq in self.tables.row_of:
            self.free(seq)
        return super().add(seq, tokens, keys)


@fault("KVP-ERR-001", "a negative id is as good as any", model="none known")
def negative_id_accepted(num_blocks: int, block_size: int) -> Manager:
    class OpenTables(Tables):
        def new_id(self, seq: Any) -> int:
            super().new_id(abs(seq) if isinstance(seq, int) and seq < 0 else seq)
            return int(seq)

    class Faulty(Manager):
        tables_type = OpenTables

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-ERR-001",
    "an append to a sequence that is gone does nothing and says nothing",
    model="vllm-project/vllm#51637",
)
class UnknownAppendIgnored(Manager):
    def append(self, seq: int, tokens: Sequence[int]) -> None:
        try:
            super().append(seq, tokens)
        except UnknownSequence:
            return


@fault(
    "KVP-ERR-002",
    "a token that is no integer is cut down to one",
    model="NVIDIA/TensorRT-LLM#13815",
)
class TokensTruncated(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        return super().add(seq, [int(t) if isinstance(t, float) else t for t in tokens], keys)

"""Planted faults of the resume, which change the output: PREEMPT-001."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvproof.contract import Block
from kvproof_impls.reference.arrays import Int32
from kvproof_impls.reference.decoding import Row
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request
from kvproof_impls.reference.scheduler import Chunk, Fed, Scheduler

from .registry import fault
from .swap import HostCopyOverwritten

# ------------------------------------------------------------ PREEMPT-001


@fault("KVP-PREEMPT-001", "a victim resumes from its prompt only", model="vllm-project/vllm#26385")
class ResumesFromThePrompt(Scheduler):
    def _back(self, victim: Request) -> None:
        victim.generated.clear()
        super()._back(victim)


@fault("KVP-PREEMPT-001", "the token of every row is kept, sampled or not", model="none known")
class PoisonKept(Scheduler):
    def samples(self, chunk: Chunk) -> bool:
        return True

    def feed(self, tokens: Sequence[Fed]) -> list[int]:
        decodes, chunks = self._planned
        rows = list(zip(chunks, tokens[len(decodes) :], strict=True))
        early = [row for row in rows if row[0].high < row[0].request.length and self.samples(row[0])]
        finished = super().feed(tokens)
        for chunk, token in early:
            chunk.request.take([token] if isinstance(token, int) else token)
        return finished


@fault(
    "KVP-PREEMPT-001",
    "a chunk that ends inside the generated part is taken to have sampled",
    model="vllm-project/vllm-omni#6053",
)
class SamplesInsideTheResume(PoisonKept):
    def samples(self, chunk: Chunk) -> bool:
        return len(chunk.request.prompt) <= chunk.high


@fault(
    "KVP-PREEMPT-001",
    "what is streamed out has the tokens of rows that sampled nothing, though none is computed",
    model="none known",
)
class PoisonInTheOutput(Scheduler):
    def __init__(self, manager: Manager, max_seqs: int, max_tokens: int) -> None:
        super().__init__(manager, max_seqs, max_tokens)
        self.streamed: dict[int, list[int]] = {}

    def plan(self) -> list[Row]:
        rows = super().plan()
        self.planned_ids = [row[0] for row in rows]
        return rows

    def feed(self, tokens: Sequence[Fed]) -> list[int]:
        for rid, token in zip(self.planned_ids, tokens, strict=True):
            self.streamed.setdefault(rid, []).extend([token] if isinstance(token, int) else token)
        return super().feed(tokens)

    def output(self, rid: int) -> list[int]:
        return self.streamed[rid]


@fault(
    "KVP-PREEMPT-001",
    "the blocks of a resumed request are appended to those it has lost",
    model="vllm-project/vllm#46595",
)
class LostBlocksStillInTable(Scheduler):
    def __init__(self, manager: Manager, max_seqs: int, max_tokens: int) -> None:
        super().__init__(manager, max_seqs, max_tokens)
        self.lost: dict[int, Int32] = {}
        self.last: dict[int, Int32] = {}

    def plan(self) -> list[Row]:
        rows = super().plan()
        self.lost |= {rid: self.last[rid] for rid in self._preempted if rid in self.last}
        self.last = {rid: table.copy() for rid, _, _, table in rows}
        none = np.zeros(0, np.int32)
        return [(r, lo, hi, np.concatenate((self.lost.get(r, none), table))) for r, lo, hi, table in rows]


@fault(
    "KVP-PREEMPT-001",
    "the host blocks of a swapped-out request are free for the next victim",
    model="NVIDIA/TensorRT-LLM#9056",
)
def swapped_out_overwritten(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    return Scheduler(HostCopyOverwritten(num_blocks, block_size), max_seqs, max_tokens, swap=True)


@fault(
    "KVP-PREEMPT-001",
    "a swapped-in request runs before its blocks are copied back",
    model="vllm-project/vllm#46595",
)
def swapped_in_late(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Scheduler):
        late: Sequence[tuple[Block, Block]] = ()

        def copies(self) -> list[tuple[Block, Block]]:
            now, due = super().copies(), list(self.late)
            self.late = [pair for pair in now if isinstance(pair[0], tuple)]
            return due + [pair for pair in now if isinstance(pair[1], tuple)]

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens, swap=True)

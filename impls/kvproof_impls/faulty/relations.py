"""Planted faults that show when one aspect of the configuration changes, and in no other way: META."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kvproof.contract import OutOfBlocks, Refused
from kvproof_impls.reference.arrays import Int32
from kvproof_impls.reference.decoding import Row
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request, State
from kvproof_impls.reference.running import Running
from kvproof_impls.reference.scheduler import Chunk, Scheduler

from .registry import fault
from .scheduling import over


@fault(
    "KVP-META-001",
    "the last token of a request is published with its block, though its KV is never computed",
    model="vllm-project/vllm#29387",
)
def last_token_published(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Hasty(Running):
        def end(self, requests: list[Request]) -> None:
            self.to_chunks([r for r in requests if r.state is State.DECODE])
            for request in [r for r in requests if r.done]:
                with suppress(OutOfBlocks, Refused):
                    self.manager.append(request.rid, request.generated[-1:])
                    self.manager.commit(request.rid, request.length)
            super().end(requests)

    return over(Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens), Hasty)


@fault(
    "KVP-META-001",
    "a block is taken when length % block_size is 1: never, where a block is one token",
    model="GeeeekExplorer/nano-vllm: takes a block when len % block_size == 1",
)
def no_block_of_one_token(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    sent: dict[int, Int32] = {}

    class Faulty(Scheduler):
        def plan(self) -> list[Row]:
            rows = super().plan()
            for rid, low, high, table in rows:
                if not low or high - low > 1 or high % block_size == 1:
                    sent[rid] = table.copy()
            return [(rid, low, high, sent.get(rid, table)) for rid, low, high, table in rows]

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens)


@fault(
    "KVP-META-001", "a chunk starts at the end of the block in which the last one ended", model="none known"
)
def chunk_at_the_next_block(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Scheduler):
        def _feed_chunk(self, chunk: Chunk, entry: list[int]) -> list[Request]:
            done, request = super()._feed_chunk(chunk, entry), chunk.request
            if not entry:
                edge = -(-request.computed // block_size) * block_size
                request.computed = min(edge, request.length - 1)
            return done

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens)


@fault("KVP-META-001", "a victim resumes one token early", model="none known")
class ResumesOneTokenEarly(Scheduler):
    def _back(self, victim: Request) -> None:
        del victim.generated[-1:]
        super()._back(victim)


@fault(
    "KVP-META-001",
    "what a victim had generated becomes part of its prompt",
    model="vllm-project/vllm-metal#128",
)
class MergedIntoThePrompt(Scheduler):
    def _back(self, victim: Request) -> None:
        victim.prompt, victim.generated = victim.tokens(), []
        super()._back(victim)


@fault("KVP-META-001", "block ids past 127 are clamped to it", model="none known")
class IdsClamped(Scheduler):
    def plan(self) -> list[Row]:
        return [(rid, low, high, np.minimum(table, 127)) for rid, low, high, table in super().plan()]


@fault("KVP-META-001", "a submit sets max_new of all who wait", model="none known")
class ParametersInCommon(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        super().submit(rid, tokens, max_new, priority)
        for _, request in self._waiting._heap:
            if not request.preempted:
                request.max_new = max_new

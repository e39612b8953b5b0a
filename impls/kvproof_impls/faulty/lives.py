"""Planted faults at the ends of a request's life: aborts, bad submits, and what is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvproof.contract import BadInput
from kvproof_impls.reference.arrays import Index
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request, State
from kvproof_impls.reference.running import Running
from kvproof_impls.reference.scheduler import Fed, Scheduler

from .registry import fault
from .scheduling import over

# ------------------------------------------------------------ SCHED-007


@fault(
    "KVP-SCHED-007",
    "the abort of a running request takes effect one step late: it stays in the batch",
    model="sgl-project/sglang#38981",
)
class AbortedStaysInBatch(Scheduler):
    late: tuple[int, ...] = ()

    def abort(self, rid: int) -> None:
        request = self._requests.get(rid)
        if request is None or request.state is State.WAITING:
            super().abort(rid)
        else:
            self.late += (rid,)

    def feed(self, tokens: Sequence[Fed]) -> list[int]:
        finished = super().feed(tokens)
        for rid in self.late:
            super().abort(rid)
        self.late = ()
        return finished


@fault(
    "KVP-SCHED-007",
    "an abort between plan and feed leaves the blocks behind",
    model="NVIDIA/TensorRT-LLM#15018",
)
class AbortBetweenLeaks(Scheduler):
    def abort(self, rid: int) -> None:
        request = self._requests.get(rid)
        if any(self._planned) and request and request.state is not State.WAITING:
            self.manager.fork(rid, 2**20 + rid)
        super().abort(rid)


@fault(
    "KVP-SCHED-007",
    "an abort between plan and feed shifts the tokens of the rows behind it",
    model="none known",
)
class AbortBetweenShiftsRows(Scheduler):
    def feed(self, tokens: Sequence[Fed]) -> list[int]:
        decodes, chunks = self._planned
        planned = [*decodes, *(chunk.request for chunk in chunks)]
        alive = [r.state is not State.ENDED for r in planned]
        from_the_front, fed = iter(tokens), list(tokens)
        for place in (place for place, still in enumerate(alive) if still):
            fed[place] = next(from_the_front)
        return super().feed(fed)


@fault(
    "KVP-SCHED-007",
    "the abort of a waiting request is forgotten: it runs when its turn comes",
    model="none known",
)
class AbortedWaitsOn(Scheduler):
    def abort(self, rid: int) -> None:
        request = self._requests.get(rid)
        if request is None or request.state is not State.WAITING:
            super().abort(rid)


@fault(
    "KVP-SCHED-007",
    "the hold that a look-up takes on cached blocks outlives the abort of a waiting request",
    model="vllm-project/vllm#44100",
)
class AbortWaitingKeepsHold(Scheduler):
    def __init__(self, manager: Manager, max_seqs: int, max_tokens: int) -> None:
        super().__init__(manager, max_seqs, max_tokens)
        self.held: dict[int, Index] = {}

    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        super().submit(rid, tokens, max_new, priority)
        hit = self.manager.plans.find(tokens, None)[2]
        self.manager.pool.retain(hit.blocks)
        self.held[rid] = hit.blocks

    def _admit(self) -> Request | None:
        head = self._waiting.head()
        if head and head.rid in self.held:
            self.manager._release(self.held.pop(head.rid).astype(np.int32))
        return super()._admit()


@fault(
    "KVP-SCHED-007",
    "the abort of a swapped-out request leaves it in the host tier, and its id in use",
    model="vllm-project/vllm#51637",
)
def abort_swapped_leaks(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Scheduler):
        def abort(self, rid: int) -> None:
            if rid in self._requests:
                self._requests[rid].away = False
            super().abort(rid)

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens, swap=True)


# ------------------------------------------------------------ SCHED-010


@fault("KVP-SCHED-010", "a duplicate id replaces the running request", model="vllm-project/vllm#51637")
class DuplicateReplaces(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        self.abort(rid)
        super().submit(rid, tokens, max_new, priority)


@fault(
    "KVP-SCHED-010",
    "a duplicate id is an error, and ends the request that has it",
    model="vllm-project/vllm#51637",
)
class DuplicateEndsTheFirst(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        try:
            super().submit(rid, tokens, max_new, priority)
        except BadInput:
            self.abort(rid)
            raise


@fault("KVP-SCHED-010", "a request for no tokens is served one", model="none known")
class NoOutputAccepted(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        super().submit(rid, tokens, max(1, max_new), priority)


# ------------------------------------------------------------ SCHED-011


@fault(
    "KVP-SCHED-011",
    "the last block of a finished request is not given back",
    model="sgl-project/sglang#38981",
)
class LastBlockKept(Scheduler):
    def _finish(self, requests: list[Request]) -> None:
        for request in requests:
            self.manager.pool.retain(self._running.table(request)[-1:].astype(np.intp))
        super()._finish(requests)


@fault(
    "KVP-SCHED-011",
    "of requests that finish in one step only the first gives back its blocks",
    model="vllm-project/vllm#51637",
)
def one_of_two_given_back(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Hasty(Running):
        lives = 0

        def end(self, requests: list[Request]) -> None:
            for request in requests[1:]:
                self.lives += 1
                self.manager.fork(request.rid, 2**20 + self.lives)
            super().end(requests)

    return over(Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens), Hasty)

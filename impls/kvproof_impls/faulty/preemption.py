"""Planted faults of preemption: who gives way, what it gives back, and how often: PREEMPT-002, -003."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvproof_impls.reference.decoding import Row
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request, State
from kvproof_impls.reference.running import Running
from kvproof_impls.reference.scheduler import Scheduler

from .registry import fault
from .scheduling import over

# ------------------------------------------------------------ PREEMPT-002


@fault("KVP-PREEMPT-002", "a victim goes to the end of the queue", model="none known")
class VictimToTheEnd(Scheduler):
    def _back(self, victim: Request) -> None:
        victim.key = (0, self._arrivals)
        self._arrivals += 1
        super()._back(victim)


def everybody(running: Running) -> list[Request]:
    return [*running.batch.requests, *running.chunks.values()]


@fault(
    "KVP-PREEMPT-002",
    "a preempted request keeps its first block",
    model="chapter 3.2.3: a preempted sequence keeps all its blocks, only a line is printed",
)
def victim_keeps_a_block(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Greedy(Running):
        def _preempt(self) -> Request:
            fresh = [r for r in everybody(self) if not r.preempted]
            victim = max(fresh, key=lambda r: r.key)
            self.manager.pool.retain(self.table(victim)[:1].astype(np.intp))
            return super()._preempt()

    return over(Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens), Greedy)


@fault(
    "KVP-PREEMPT-002",
    "the blocks of a victim are free in the next step only, so one more is preempted, and one more",
    model="vllm-project/vllm-ascend#16315",
)
def blocks_back_a_step_late(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Fenced(Running):
        fenced: Sequence[int] = ()

        def reserve(self) -> list[Request]:
            for rid in self.fenced:
                self.manager.free(rid)
            self.fenced = ()
            return super().reserve()

        def _preempt(self) -> Request:
            victim = max(everybody(self), key=lambda r: r.key)
            self._stop([victim])
            victim.state, victim.preempted = State.WAITING, True
            self.fenced = (*self.fenced, victim.rid)
            return victim

    return over(Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens), Fenced)


class Pushy(Scheduler):
    """Preempts running requests of its choice before a step."""

    def victims(self) -> list[Request]:
        raise NotImplementedError

    def plan(self) -> list[Row]:
        self.out = self.victims()
        for victim in self.out:
            self._running._stop([victim])
            self.manager.free(victim.rid)
            victim.preempted = True
            self._back(victim)
        return super().plan()

    def _admit(self) -> Request | None:
        return None if self._waiting.head() in self.out else super()._admit()


@fault(
    "KVP-PREEMPT-002",
    "a victim comes back by preempting who took its blocks, and so on in turn",
    model="vllm-project/vllm#23713",
)
def ping_pong(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Pushy):
        def victims(self) -> list[Request]:
            head = self._waiting.head()
            return everybody(self._running) if head and head.preempted else []

        def _back(self, victim: Request) -> None:
            victim.key = (0, self._arrivals)  # behind the one that pushes it out
            self._arrivals += 1
            super()._back(victim)

    return Faulty(Manager(num_blocks, block_size, caching=False), max_seqs, max_tokens)


# ------------------------------------------------------------ PREEMPT-003


@fault(
    "KVP-PREEMPT-003",
    "a resume needs blocks for the known tokens only, so the same request is the victim again",
    model="vllm-project/vllm#28018",
)
class PreemptedWithoutBound(Scheduler):
    def _back(self, victim: Request) -> None:
        super()._back(victim)
        victim.preempted = False


@fault(
    "KVP-PREEMPT-003",
    "a prompt that is not computed in one step is preempted for those who decode, and starts again",
    model="vllm-project/vllm#37307",
)
def prefill_starts_again(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Pushy):
        def victims(self) -> list[Request]:
            return list(self._running.chunks.values()) if len(self._running.batch) else []

    return Faulty(Manager(num_blocks, block_size, caching=False), max_seqs, max_tokens)

"""Planted faults of the step: what is planned, in which ranges, and who is admitted or refused."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from kvproof_impls.reference.decoding import Row
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request, State
from kvproof_impls.reference.running import Running
from kvproof_impls.reference.scheduler import Chunk, Fed, Scheduler

from .registry import fault


def over(scheduler: Scheduler, running: type[Running]) -> Scheduler:
    """Put another kind of `Running` under a new scheduler."""
    swaps = "swap" in scheduler.capabilities
    scheduler._running = running(scheduler.manager, scheduler.policy["watermark"], swaps)
    return scheduler


# ------------------------------------------------------------ SCHED-001, SCHED-002


@fault(
    "KVP-SCHED-001",
    "a prompt that is admitted is planned whole, whatever is left of the budget",
    model="ROCm/ATOM#408",
)
class LongPromptOvershoots(Scheduler):
    def _chunk(
        self, request: Request, budget: int, drafts: int, rows: list[Row], chunks: list[Chunk]
    ) -> tuple[int, int]:
        return super()._chunk(request, request.length - request.computed, drafts, rows, chunks)


@fault(
    "KVP-SCHED-001",
    "the sequences of a step are bounded by the token budget only",
    model="vllm-project/vllm#23713",
)
def seats_not_counted(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    return Scheduler(Manager(num_blocks, block_size), max_tokens, max_tokens)


@fault("KVP-SCHED-001", "rows that decode are not counted in the token budget", model="none known")
def decodes_not_counted(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Scheduler):
        def plan(self) -> list[Row]:
            self.max_tokens = max_tokens + len(self._running.batch)
            return super().plan()

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens)


@fault("KVP-SCHED-002", "a preempted request stays in the plan", model="vllm-project/vllm#23347")
class VictimStaysInPlan(Scheduler):
    last: Sequence[Row] = ()

    def plan(self) -> list[Row]:
        rows = super().plan()
        victims = [(r, hi, hi + 1, table) for r, _, hi, table in self.last if r in self._preempted]
        self.last = [(rid, lo, hi, table.copy()) for rid, lo, hi, table in rows]
        return rows + victims

    def feed(self, tokens: Sequence[Fed]) -> list[int]:
        return super().feed(tokens[: len(self.last)])


@fault("KVP-SCHED-002", "a long chunk is planned as several rows of one request", model="none known")
def several_rows_a_request(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    piece = 4

    class Faulty(Scheduler):
        def plan(self) -> list[Row]:
            rows = super().plan()
            self.last_of_each = list(accumulate(-(-(hi - lo) // piece) for _, lo, hi, _ in rows))
            return [
                (rid, at, min(at + piece, hi), table)
                for rid, lo, hi, table in rows
                for at in range(lo, hi, piece)
            ]

        def feed(self, tokens: Sequence[Fed]) -> list[int]:
            return super().feed([tokens[end - 1] for end in self.last_of_each])

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens)


@fault(
    "KVP-SCHED-002",
    "a request is admitted though the budget is spent, with a row of no positions",
    model="vllm-project/vllm#49097",
)
class EmptyRowAtSpentBudget(Scheduler):
    def plan(self) -> list[Row]:
        rows = super().plan()
        spent = sum(hi - lo for _, lo, hi, _ in rows) == self.max_tokens
        if spent and (request := self._admit()):
            at = request.computed
            rows.append((request.rid, at, at, self._running.table(request)))
            self._planned[1].append(Chunk(request, at, []))
        return rows


# ------------------------------------------------------------ SCHED-003


@fault(
    "KVP-SCHED-003",
    "the token at the chunk edge is computed twice",
    model="Wenyueh/MinivLLM: the same position is decoded for ever",
)
class ChunkEdgeRepeated(Scheduler):
    def _feed_chunk(self, chunk: Chunk, entry: list[int]) -> list[Request]:
        done = super()._feed_chunk(chunk, entry)
        if not entry:
            chunk.request.computed -= 1
        return done


@fault("KVP-SCHED-003", "the token at the chunk edge is never computed", model="RBLN-SW/vllm-rbln#499")
class ChunkEdgeSkipped(Scheduler):
    def _feed_chunk(self, chunk: Chunk, entry: list[int]) -> list[Request]:
        done = super()._feed_chunk(chunk, entry)
        if not entry and chunk.request.computed + 1 < chunk.request.length:
            chunk.request.computed += 1
        return done


@fault(
    "KVP-SCHED-003",
    "the count of a range is taken before the look-up, its start after it",
    model="GeeeekExplorer/nano-vllm#211",
)
class CountedBeforeLookUp(Scheduler):
    def _chunk(
        self, request: Request, budget: int, drafts: int, rows: list[Row], chunks: list[Chunk]
    ) -> tuple[int, int]:
        hit = request.computed if request.rid not in self.manager_knew else 0
        low, high = super()._chunk(request, budget, drafts, rows, chunks)
        if hit:
            rows[-1] = (request.rid, low, low + min(budget, request.length), rows[-1][3])
        return low, high

    def plan(self) -> list[Row]:
        self.manager_knew = set(self._running.chunks)
        return super().plan()


@fault(
    "KVP-SCHED-003",
    "the first range starts before the hit, in blocks that others read",
    model="lablup/mlxcel#1760",
)
class HitComputedAgain(Scheduler):
    def plan(self) -> list[Row]:
        known = {*self._running.chunks, *self._running.batch.seqs}
        return [(rid, lo if rid in known else 0, hi, table) for rid, lo, hi, table in super().plan()]


@fault(
    "KVP-SCHED-003",
    "the first range starts one token past the hit",
    model="none known",
)
class HitOneTokenTooLong(Scheduler):
    def _admit(self) -> Request | None:
        request = super()._admit()
        if request and 0 < request.computed < request.length - 1:
            request.computed += 1
        return request


# ------------------------------------------------------------ SCHED-006


@fault(
    "KVP-SCHED-006",
    "whatever fits is admitted, past a head that does not, without a bound",
    model="chapter 3.2.3: the loop goes on behind a request that does not fit",
)
class SmallOnesOvertake(Scheduler):
    def _admit(self) -> Request | None:
        request = super()._admit()
        if request or len(self._running) >= self.max_running:
            return request
        for _, later in sorted(self._waiting._heap, key=lambda entry: entry[0]):
            if later.state is State.WAITING and self._running.start(later):
                self._waiting.leave(later)
                later.state = State.CHUNKS
                return later
        return None


@fault("KVP-SCHED-006", "the priority of a request is not read", model="vllm-project/vllm#40004")
def priority_ignored(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Scheduler):
        def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
            super().submit(rid, tokens, max_new)

    return Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens, order="priority")


# ------------------------------------------------------------ SCHED-008, SCHED-009


@fault(
    "KVP-SCHED-008",
    "admission counts half as many blocks again as there are",
    model="NVIDIA/TensorRT-LLM#15065",
)
def admits_all_three(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Scheduler):
        def free_blocks(self) -> int:
            return min(num_blocks, super().free_blocks())

    return Faulty(Manager(num_blocks + num_blocks // 2, block_size), max_seqs, max_tokens)


@fault(
    "KVP-SCHED-008",
    "the reserved block is taken off the free ones once more at admission",
    model="none known",
)
def reserved_counted_twice(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Short(Running):
        def start(self, request: Request) -> bool:
            needed = self.manager.tables.blocks_of(request.length)
            if len(self) and needed > self.manager.free_blocks() - len(self.manager.reserved):
                return False
            return super().start(request)

    manager = Manager(num_blocks, block_size, reserved=1)
    return over(Scheduler(manager, max_seqs, max_tokens), Short)


@fault("KVP-SCHED-009", "the whole queue is looked at in every step", model="none known")
class QueueScanned(Scheduler):
    def plan(self) -> list[Row]:
        waiting = [request for _, request in self._waiting._heap if request.state is State.WAITING]
        self.demand = sum(self._running.blocks_at_end(request) for request in waiting)
        return super().plan()

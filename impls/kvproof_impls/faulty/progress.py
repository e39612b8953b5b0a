"""Planted faults of service: requests that can never fit, deadlocks, and the number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.contract import ContractError, Refused
from kvproof_impls.reference.decoding import Row
from kvproof_impls.reference.inputs import token_array
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.requests import Request, State
from kvproof_impls.reference.running import Running
from kvproof_impls.reference.scheduler import Scheduler

from .registry import fault
from .scheduling import over


class Credulous(Scheduler):
    """Queues a request that can never fit, if `takes` says so."""

    def takes(self, tokens: Sequence[int]) -> bool:
        return True

    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        try:
            super().submit(rid, tokens, max_new, priority)
        except Refused:
            if not self.takes(tokens):
                raise
            self._requests[rid] = Request(rid, (0, self._arrivals), token_array(tokens).copy(), max_new)
            self._arrivals += 1
            self._waiting.push(self._requests[rid])


class Patient(Running):
    """Tries again later, whatever the reason."""

    def start(self, request: Request) -> bool:
        try:
            return super().start(request)
        except Refused:
            return False

    def reserve(self) -> list[Request]:
        victims: list[Request] = []
        while True:
            try:
                return victims + super().reserve()
            except Refused:
                victims.append(self._preempt())


# ------------------------------------------------------------ SCHED-004


@fault(
    "KVP-SCHED-004",
    "a prompt larger than the pool waits for ever, and all behind it",
    model="vllm-project/vllm#39734",
)
def oversize_waits_for_ever(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    return over(Credulous(Manager(num_blocks, block_size), max_seqs, max_tokens), Patient)


@fault(
    "KVP-SCHED-004",
    "a prompt larger than the pool ends the engine when its turn comes",
    model="GeeeekExplorer/nano-vllm: a request larger than the pool ends the engine",
)
def oversize_ends_the_engine(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Strict(Running):
        def start(self, request: Request) -> bool:
            try:
                return super().start(request)
            except Refused as error:
                raise RuntimeError("nothing is scheduled") from error

    return over(Credulous(Manager(num_blocks, block_size), max_seqs, max_tokens), Strict)


@fault(
    "KVP-SCHED-004",
    "a request whose prompt fits and whose output does not is retried for ever",
    model="pavanbobba09/mini-vllm: a request that outgrows the pool is retried for ever",
)
def outgrows_the_pool(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Credulous):
        def takes(self, tokens: Sequence[int]) -> bool:
            return len(tokens) <= num_blocks * block_size

    return over(Faulty(Manager(num_blocks, block_size), max_seqs, max_tokens), Patient)


@fault(
    "KVP-SCHED-004",
    "the reserved block counts as usable when a request is looked at",
    model="none known",
)
def reserved_block_promised(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Credulous):
        def takes(self, tokens: Sequence[int]) -> bool:
            return len(tokens) <= num_blocks * block_size

    manager = Manager(num_blocks, block_size, reserved=1)
    return over(Faulty(manager, max_seqs, max_tokens), Patient)


class Late(Credulous):
    """Gives up a request that can never fit when it comes to the head of the queue."""

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        super().__init__(Manager(num_blocks, block_size), max_seqs, max_tokens)
        self.given_up: list[tuple[int, str]] = []

    def _admit(self) -> Request | None:
        head = self._waiting.head()
        free_seat = len(self._running) < self.max_running
        if head and free_seat and self._running.blocks_at_end(head) > self.manager.pool.capacity:
            self.abort(head.rid)
            self.given_up.append((head.rid, "it is larger than the pool"))
        return super()._admit()

    def rejected(self) -> list[tuple[int, str]]:
        found, self.given_up = self.given_up, []
        return found


@fault(
    "KVP-SCHED-004",
    "a prompt larger than the pool is refused when its turn comes, not at once",
    model="vllm-project/vllm#35541",
)
def refused_late(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    return Late(num_blocks, block_size, max_seqs, max_tokens)


@fault("KVP-SCHED-004", "a request is given up without a reason", model="none known")
def refused_without_a_reason(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Faulty(Late):
        def rejected(self) -> list[tuple[int, str]]:
            return [(rid, "") for rid, _ in super().rejected()]

    return Faulty(num_blocks, block_size, max_seqs, max_tokens)


# ------------------------------------------------------------ SCHED-005


@fault(
    "KVP-SCHED-005",
    "a head that did not fit once is never looked at again, and blocks all behind it",
    model="vllm-project/vllm#45388",
)
class HeadForgotten(Scheduler):
    def _finish(self, requests: list[Request]) -> None:
        stuck = self._stuck
        super()._finish(requests)
        self._stuck = stuck


@fault(
    "KVP-SCHED-005",
    "a request needs one block more than the watermark leaves, so nobody runs in an empty pool",
    model="vllm-project/vllm#45388",
)
def watermark_deadlock(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    class Strict(Running):
        def start(self, request: Request) -> bool:
            left = self.manager.free_blocks() - self.manager.tables.blocks_of(request.length)
            return left > self._watermark and super().start(request)

    return over(Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens, watermark=1), Strict)


@fault(
    "KVP-SCHED-005",
    "a request that fits to the last slot is refused: its last token, which is only sampled, counts",
    model="none known",
)
class SampledTokenCounted(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        if len(tokens) + max_new > self.manager.pool.capacity * self.manager.block_size:
            raise Refused(f"request {rid}: {len(tokens)} tokens and {max_new} new ones")
        super().submit(rid, tokens, max_new, priority)


@fault("KVP-SCHED-005", "an aborted request keeps its seat", model="vllm-project/vllm#53130")
class SeatNotGivenBack(Scheduler):
    def abort(self, rid: int) -> None:
        before = len(self._running)
        super().abort(rid)
        self.max_running -= before - len(self._running)


@fault(
    "KVP-SCHED-005",
    "tokens of a row that is aborted before its feed are in flight for ever",
    model="vllm-project/vllm#53130",
)
class BudgetNotRefunded(Scheduler):
    in_flight: dict[int, int]

    def plan(self) -> list[Row]:
        rows = super().plan()
        self.in_flight = {rid: hi - lo for rid, lo, hi, _ in rows}
        return rows

    def abort(self, rid: int) -> None:
        super().abort(rid)
        if any(self._planned):
            self.max_tokens = max(0, self.max_tokens - self.in_flight.pop(rid, 0))


@fault(
    "KVP-SCHED-005",
    "a request that cannot grow disappears",
    model="K-RAMYA05/mini-vLLM: a request that cannot grow disappears",
)
class VictimDisappears(Scheduler):
    def _back(self, victim: Request) -> None:
        del self._requests[victim.rid]
        victim.state = State.ENDED
        self._stuck = None


@fault("KVP-SCHED-005", "a request ends one token short of max_new", model="none known")
class OneTokenShort(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        super().submit(rid, tokens, max_new - (max_new > 1), priority)


@fault("KVP-SCHED-005", "a request ends one token after max_new", model="none known")
class OneTokenMore(Scheduler):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        try:
            super().submit(rid, tokens, max_new + (max_new > 0), priority)
        except ContractError:
            super().submit(rid, tokens, max_new, priority)

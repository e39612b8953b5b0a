"""Continuous batching over the plain manager (chapter 3.2.3): two lists, both in order of arrival.

Whoever needs a block when there is none takes those of the request that arrived last, which may be its
own. A preempted request comes back only when all that run, and itself, fit to their ends. Until then
nobody passes it, and afterwards those behind it are the victims; when they are gone, it fits. So
nobody is preempted twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvproof import contract
from kvproof_impls.plain.manager import PlainManager


@dataclass(eq=False)
class Request:
    rid: int
    tokens: list[int]  # the prompt and what was generated
    prompt: int  # how many of them the caller gave
    max_new: int
    computed: int = 0
    known: int = 0  # tokens that the manager has
    preempted: bool = False

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.prompt + self.max_new


class PlainScheduler:
    def __init__(self, manager: PlainManager, max_seqs: int, max_tokens: int) -> None:
        if max_seqs < 1 or max_tokens < 1:
            raise contract.BadInput(f"max_seqs {max_seqs}, max_tokens {max_tokens}: needs 1 or more")
        self.manager, self.max_seqs, self.max_tokens = manager, max_seqs, max_tokens
        self.capacity, self.reserved = manager.limit // manager.size, manager.reserved
        names = {"chunked", "output", "tight_budget"}
        self.capabilities = frozenset(names | (manager.capabilities & {"prefix"}))
        self.policy: contract.Policy = {
            "order": "fcfs",
            "overtake": 0,
            "max_preemptions": 1,
            **manager.policy,
        }
        self.waiting, self.running, self.planned = (
            list[Request](),
            list[Request](),
            list[tuple[Request, int]](),
        )
        self.victims, self.outputs = list[int](), dict[int, list[int]]()

    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        contract.require_new(rid, [request.rid for request in self.waiting + self.running])
        contract.require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise contract.BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        request = Request(rid, list(tokens), len(tokens), max_new)
        if (needed := self._blocks_at_end([request])) > self.capacity:
            raise contract.Refused(
                f"request {rid} takes {needed} blocks at its end, there are {self.capacity}"
            )
        self.waiting.append(request)
        self.outputs.pop(rid, None)

    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def plan(self) -> list[tuple[int, int, int, list[int]]]:
        if self.planned:
            raise contract.BadInput("the last plan has not been fed")
        before, budget = len(self.victims), self.max_tokens
        for request in self.running[:]:  # the oldest first, so a victim has no row yet
            if budget and request in self.running and self._grow(request):
                budget -= self._row(request, budget)
        while budget and len(self.victims) == before and self._admit():
            budget -= self._row(self.running[-1], budget)
        return [(r.rid, r.computed, high, self.manager.table(r.rid)) for r, high in self.planned]

    def feed(self, tokens: Sequence[int]) -> list[int]:
        if len(tokens) != len(self.planned):
            raise contract.BadInput(f"{len(tokens)} tokens for {len(self.planned)} planned rows")
        contract.require_tokens([0, *tokens])  # an empty plan is legal
        planned, self.planned, finished = self.planned, [], list[int]()
        for (request, high), token in zip(planned, tokens, strict=True):
            if request not in self.running:
                continue  # aborted
            self.manager.commit(request.rid, high)
            request.computed = high
            if high == len(request.tokens):
                request.tokens.append(token)
            if request.done:
                self.abort(request.rid)
                finished.append(request.rid)
                self.outputs[request.rid] = request.tokens[request.prompt :]
        return finished

    def abort(self, rid: int) -> None:
        if any(request.rid == rid for request in self.running):
            self.manager.free(rid)
        self.running = [request for request in self.running if request.rid != rid]
        self.waiting = [request for request in self.waiting if request.rid != rid]
        self.victims = [victim for victim in self.victims if victim != rid]

    def preempted(self) -> list[int]:
        victims, self.victims = self.victims, []
        return victims

    def output(self, rid: int) -> list[int]:
        for request in self.waiting + self.running:
            if request.rid == rid:
                return request.tokens[request.prompt :]
        if rid not in self.outputs:
            raise contract.UnknownSequence(f"no request {rid!r}")
        return self.outputs[rid]

    def free_blocks(self) -> int:
        return self.manager.free_blocks()

    def _row(self, request: Request, budget: int) -> int:
        high = min(len(request.tokens), request.computed + budget)
        self.planned.append((request, high))
        return high - request.computed

    def _grow(self, request: Request) -> bool:
        """A block for the token that was sampled last; False if the request had to leave."""
        while request.known < len(request.tokens):
            try:
                self.manager.append(request.rid, request.tokens[request.known :])
                request.known = len(request.tokens)
            except contract.OutOfBlocks:
                victim = self.running.pop()
                self.manager.free(victim.rid)
                victim.preempted = True
                self.waiting.insert(0, victim)
                self.victims.append(victim.rid)
                if victim is request:
                    return False
        return True

    def _admit(self) -> bool:
        if not self.waiting or len(self.running) == self.max_seqs:
            return False
        request = self.waiting[0]
        if request.preempted and self._blocks_at_end([*self.running, request]) > self.capacity:
            return False
        try:
            request.computed = self.manager.add(request.rid, request.tokens)
        except contract.OutOfBlocks:
            return False
        request.known = len(request.tokens)
        self.running.append(self.waiting.pop(0))
        return True

    def _blocks_at_end(self, requests: list[Request]) -> int:
        """The last token of each is sampled and never computed."""
        return sum(ceil((r.prompt + r.max_new - 1) / self.manager.size) for r in requests)

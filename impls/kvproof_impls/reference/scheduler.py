"""Continuous batching: who computes what in the next step (chapter 3.2.3).

A step is `plan`, the model, `feed`. A plan has a row for every running request that decodes, then
chunks of prompts that run, then those that are admitted, each in the declared order, as far as the
token budget goes. What a step computed is committed in `feed`, so nothing is published that is not
written.

Order: by arrival, or by priority and then arrival. The head of the queue blocks all behind it, so
nobody is overtaken, and a preempted request keeps its place. (The chapter's loop lets small requests
pass a large one for ever.) What can never fit is refused at submit. Admission and preemption are in
running.py, with the proof that a request is preempted at most once.

Every request ends: while one is left, one runs, because an empty pool admits the head; the oldest
running one computes something in every step; and what is computed is lost at most once a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from kvproof.contract import BadInput, Block, Policy, Refused, UnknownSequence

from .arrays import Int32
from .decoding import Row
from .inputs import ID_LIMIT, new_id, token_array, whole
from .manager import Manager
from .requests import Request, State, Waiting
from .running import Running

KEPT_OUTPUTS = 4096
"""Finished requests whose output can still be asked for."""

Fed: TypeAlias = int | Sequence[int]
"""What a row sampled: a token, or several (`speculate`)."""


class Chunk(NamedTuple):
    """A planned row that is not in the decode batch: up to `high`, drafts included."""

    request: Request
    high: int
    drafts: list[int]


class Scheduler:
    """Requests over a block manager, which must be empty and is the scheduler's alone.

    A step computes at most `max_tokens` positions of at most `max_seqs` requests. No more run than
    can each have a token in every step.

    order: "fcfs" or "priority". swap: preempted requests go to the host tier of the manager, and
    are computed again only if that is full. watermark: blocks that an admission must leave.
    """

    def __init__(
        self,
        manager: Manager,
        max_seqs: int,
        max_tokens: int,
        *,
        order: str = "fcfs",
        swap: bool = False,
        watermark: int = 0,
    ) -> None:
        if order not in ("fcfs", "priority"):
            raise BadInput(f"order {order!r}: allowed are fcfs, priority")
        self.policy: Policy = {
            "order": order,
            "overtake": 0,
            "max_preemptions": 1,
            "evict": "lru-tail",
            "watermark": whole(watermark, "watermark", 0, manager.pool.capacity - 1),
            "reserves": "prompt",
        }
        names = {"chunked", "output", "rejected", "speculate", "tight_budget"}
        names |= ({"copies", "swap"} if swap else set()) | ({"prefix"} if manager.prefix else set())
        self.capabilities = frozenset(names)
        self.reserved = manager.reserved
        self.manager = manager
        self.max_tokens = whole(max_tokens, "max_tokens", 1, ID_LIMIT)
        self.max_running = min(whole(max_seqs, "max_seqs", 1, ID_LIMIT), self.max_tokens)
        self._requests: dict[int, Request] = {}  # all that have not ended
        self._waiting = Waiting()
        self._running = Running(manager, watermark, swap)
        self._stuck: Request | None = None  # it did not fit, and nothing has changed for the better
        self._planned: tuple[list[Request], list[Chunk]] = [], []
        self._drafted: list[Request] = []  # since the last plan
        self._preempted: list[int] = []
        self._outputs: dict[int, list[int]] = {}
        self._arrivals = 0

    # ------------------------------------------------------------ requests

    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        """A new request; a larger priority goes first if the order is "priority".

        Raises:
            Refused: it can never fit. BadInput: see `kvproof.contract.Scheduler`.
        """
        rid = new_id(rid)
        if rid in self._requests:
            raise BadInput(f"request {rid} exists already")
        prompt = token_array(tokens).copy()
        whole(max_new, "max_new", 1, ID_LIMIT)
        rank = whole(priority, "priority", -ID_LIMIT, ID_LIMIT) if self.policy["order"] == "priority" else 0
        request = Request(rid, (-rank, self._arrivals), prompt, int(max_new))
        needed, watermark = self._running.blocks_at_end(request), self.policy["watermark"]
        usable = self.manager.pool.capacity - watermark
        if needed > usable:
            raise Refused(
                f"request {rid}: {len(prompt)} tokens and {max_new} new ones take {needed} blocks "
                f"({self.manager.tables.blocks_of(len(prompt))} for the prompt); there are {usable}, "
                f"{len(self.reserved)} reserved and {watermark} kept back"
            )
        self._arrivals += 1
        self._outputs.pop(rid, None)
        self._requests[rid] = request
        self._waiting.push(request)

    def abort(self, rid: int) -> None:
        """End a request in any state; if its row is planned, what is fed for it is ignored."""
        request = self._requests.pop(rid, None)
        if request is None:
            return
        if rid in self._preempted:
            self._preempted.remove(rid)
        if request.state is not State.WAITING:
            self._running.end([request])
            self._stuck = None
            return
        self._waiting.leave(request)
        if request.away:
            self.manager.free(rid)

    def propose(self, rid: int, drafts: Sequence[int]) -> None:
        """Draft tokens to compute behind the known ones in the next step that samples (`speculate`).

        That row's hi is the length and as many drafts as there was room for, in the budget and in
        free blocks. The drafts with which its entry in `feed` begins are accepted, the others dropped.
        """
        if rid not in self._requests:
            raise UnknownSequence(f"no request {rid!r}")
        self._requests[rid].drafts = token_array(drafts).tolist()
        self._drafted.append(self._requests[rid])

    def has_work(self) -> bool:
        """Some request has not ended."""
        return bool(self._requests)

    def output(self, rid: int) -> list[int]:
        """Tokens generated so far; kept for the last 4,096 finished requests."""
        request = self._requests.get(rid)
        self._running.batch.settle()
        found = self._outputs.get(rid) if request is None else request.generated
        if found is None:
            raise UnknownSequence(f"no request {rid!r}")
        return list(found)

    def preempted(self) -> list[int]:
        """Requests that lost their blocks since the last call."""
        found, self._preempted = self._preempted, []
        return found

    def rejected(self) -> list[tuple[int, str]]:
        """None: what can never fit is refused at submit."""
        return []

    def copies(self) -> list[tuple[Block, Block]]:
        """Block copies since the last call, in order: swaps out and in."""
        return self.manager.copies()

    def free_blocks(self) -> int:
        """Free and evictable blocks."""
        return self.manager.free_blocks()

    # ------------------------------------------------------------ plan

    def plan(self) -> list[Row]:
        """The next step: (rid, lo, hi, table) a row; a table is a view, right until the next call.

        Raises:
            BadInput: the last plan was not fed.
        """
        if any(self._planned):
            raise BadInput("the last plan has not been fed")
        running, chunks = self._running, list[Chunk]()
        running.to_chunks([r for r in self._drafted if r.state is State.DECODE])
        self._drafted = []
        victims = running.reserve()
        rows = running.batch.rows()
        budget = self.max_tokens - len(rows)
        going_on = sorted(running.chunks.values(), key=lambda r: r.key)
        drafts = budget - sum(r.length - r.computed for r in going_on)  # known tokens go first
        for request in going_on:
            low, high = self._chunk(request, budget, max(0, drafts), rows, chunks)
            budget -= high - low
            drafts -= max(0, high - request.length)
        for request in victims:
            self._back(request)
        while not victims and budget and (admitted := self._admit()):
            low, high = self._chunk(admitted, budget, 0, rows, chunks)
            budget -= high - low
        self._planned = running.batch.requests, chunks
        return rows

    def _chunk(
        self, request: Request, budget: int, drafts: int, rows: list[Row], chunks: list[Chunk]
    ) -> tuple[int, int]:
        """Plan as much of a request as the budgets of known tokens and of drafts allow; (lo, hi)."""
        low, high, taken = request.computed, min(request.length, request.computed + budget), list[int]()
        if high == request.length:
            taken = request.drafts[:drafts]
            taken = taken[: self._running.extend_by(request, taken)]
            request.drafts = []
            high += len(taken)
        if low < high:
            rows.append((request.rid, low, high, self._running.table(request)))
            chunks.append(Chunk(request, high, taken))
        return low, high

    def _admit(self) -> Request | None:
        """Start the head of the queue if it fits."""
        request = self._waiting.head()
        if request is None or request is self._stuck or len(self._running) >= self.max_running:
            return None
        if not self._running.start(request):
            self._stuck = request
            return None
        self._waiting.pop()
        return request

    def _back(self, victim: Request) -> None:
        """A preempted request waits again."""
        victim.drafts = []
        self._waiting.push(victim)
        self._preempted.append(victim.rid)
        self._stuck = None

    # ------------------------------------------------------------ feed

    def feed(self, tokens: Sequence[Fed]) -> list[int]:
        """What the rows of the last plan sampled, in order; returns who has finished.

        An entry of several tokens (`speculate`) holds what follows the known ones, in order. Those that
        were computed as drafts are in the cache, the last one excepted; the others are computed next.

        Raises:
            BadInput: too few or too many entries, or one that a row samples is no token; nothing has
                changed then.
        """
        decodes, chunks = self._planned
        if len(tokens) != len(decodes) + len(chunks):
            raise BadInput(f"{len(tokens)} entries for {len(decodes) + len(chunks)} planned rows")
        batched, others = tokens[: len(decodes)], tokens[len(decodes) :]
        if decodes is not self._running.batch.requests:  # some were aborted
            batched = [t for r, t in zip(decodes, batched, strict=True) if r.state is State.DECODE]
        firsts, further = _split(batched)
        fed = [
            (chunk, _entry(entry) if chunk.high >= chunk.request.length else [])
            for chunk, entry in zip(chunks, others, strict=True)
            if chunk.request.state is State.CHUNKS
        ]
        self._planned = [], []
        ended = self._feed_batch(firsts, further) if len(firsts) else []
        for chunk, entry in fed:
            ended += self._feed_chunk(chunk, entry)
        if ended:
            self._finish(ended)
        one_left = [chunk.request for chunk, entry in fed if entry and chunk.request.state is State.CHUNKS]
        self._running.to_batch([r for r in one_left if r.computed == r.length - 1])
        return [r.rid for r in ended]

    def _feed_batch(self, firsts: Int32, further: dict[int, list[int]]) -> list[Request]:
        """The decode batch; `further` are the tokens behind the first, by place. Returns who is done."""
        batch = self._running.batch
        self.manager.commit_batch(batch.seqs)
        ended, several = batch.feed(firsts), [(batch.requests[at], more) for at, more in further.items()]
        self._running.to_chunks([request for request, _ in several])
        for request, more in several:
            if not request.done:
                request.take(more)
                ended += [request] if request.done else []
        return ended

    def _feed_chunk(self, chunk: Chunk, entry: list[int]) -> list[Request]:
        """Another row, `entry` being empty if it sampled nothing; [request] if that is done."""
        request, known = chunk.request, chunk.request.length
        request.computed = min(chunk.high, known)
        request.take(entry)
        if chunk.drafts:
            pairs = zip(request.generated[known - request.length :][:-1], chunk.drafts, strict=False)
            request.computed += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            self.manager.truncate(request.rid, request.computed)
        self.manager.commit(request.rid, request.computed)
        if entry:
            self._stuck = None  # what it has published may be what the head of the queue needs
        return [request] if request.done else []

    def _finish(self, requests: list[Request]) -> None:
        """These have all their tokens."""
        self._running.end(requests)
        self._stuck = None
        for request in requests:
            del self._requests[request.rid]
            self._outputs[request.rid] = request.generated
        while len(self._outputs) > KEPT_OUTPUTS:
            del self._outputs[next(iter(self._outputs))]


def _entry(entry: Any) -> list[int]:
    """An entry of `feed` as tokens, BadInput if it has none."""
    tokens: list[int] = token_array(entry if isinstance(entry, Sequence) else [entry]).tolist()
    return tokens


def _split(entries: Sequence[Any]) -> tuple[Int32, dict[int, list[int]]]:
    """(first token of each entry, further tokens by place)."""
    if not len(entries):
        return token_array([0])[:0], {}
    try:
        return token_array(entries), {}
    except BadInput:
        lists = [_entry(entry) for entry in entries]
        further = {place: tokens[1:] for place, tokens in enumerate(lists) if len(tokens) > 1}
        return token_array([tokens[0] for tokens in lists]), further

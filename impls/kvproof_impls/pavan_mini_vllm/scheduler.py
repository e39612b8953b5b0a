"""Its scheduler: it calls the model inside a step, once for each admission and once for all who decode."""

import types
from collections.abc import Sequence
from typing import Any

from engine import scheduler
from engine.block_manager import BlockManager
from engine.config import EngineConfig

from kvproof.contract import BadInput, Refused, require_new, require_tokens
from kvproof_impls.inside import Loop, Row


def prefill(loop: Loop, cache: object, blocks: BlockManager, rid: int, context: Sequence[int]) -> int:
    """Theirs without the model: what it answers stands for the logits."""
    table = blocks.allocate_sequence(rid, len(context))
    return loop.hand_over([(rid, 0, len(context), table)])[0]


def decode(loop: Loop, cache: object, blocks: BlockManager, rids: list[int], last: object) -> list[int]:
    for rid in rids:
        blocks.append_token(rid)
    lengths = [blocks.num_tokens(rid) for rid in rids]
    return loop.hand_over([(r, n - 1, n, blocks.block_table(r)) for r, n in zip(rids, lengths, strict=True)])


scheduler.paged_prefill, scheduler.paged_decode_step = prefill, decode
scheduler.PagedKVCache = lambda *_, **__: None


class Engine(scheduler.Scheduler):
    def _sample(self, logits: int, request: scheduler.Request) -> int:
        return logits

    def _preempt_youngest(self) -> None:
        self.victims.append(self.running[-1].request_id)
        super()._preempt_youngest()

    def round(self) -> None:
        self.model.hand_over([])
        self.step()


class PavanScheduler:
    capabilities = frozenset({"output"})
    policy = types.MappingProxyType({"order": "fcfs", "overtake": 0})

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        if max_tokens < num_blocks * block_size:
            raise Refused(f"max_tokens {max_tokens}: it has no token budget, its pool alone bounds a step")
        loop = Loop()
        loop.config = types.SimpleNamespace(max_position_embeddings=2**31)
        loop.parameters = lambda: iter([types.SimpleNamespace(device="cpu", dtype=None)])
        self.engine = Engine(loop, EngineConfig(block_size, num_blocks, max_seqs, watermark_blocks=0))
        self.engine.victims, self.rows, self.asked = [], list[Row](), list[Row]()
        self.requests, self.live = dict[int, Any](), set[int]()
        loop.start(self.engine.round)

    def __del__(self) -> None:
        if hasattr(self, "engine"):
            self.engine.model.close()

    def submit(self, rid: int, tokens: list[int], max_new: int, priority: int = 0) -> None:
        require_new(rid, self.requests)
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        request = scheduler.Request(rid, list(tokens), max_new, temperature=1.0)
        try:
            self.engine.add_request(request)
        except ValueError as error:
            raise Refused(str(error)) from None
        self.requests[rid] = request
        self.live.add(rid)

    def has_work(self) -> bool:
        return self.engine.has_unfinished

    def plan(self) -> list[Row]:
        self.asked = self.rows or self.engine.model.go_on([])
        self.planned = [row for row in self.asked if row[0] in self.live]
        return self.planned

    def feed(self, tokens: list[int]) -> list[int]:
        fed = iter(tokens)
        answer = [next(fed) if row in self.planned else 0 for row in self.asked]
        self.rows = self.engine.model.go_on(answer) if self.asked else []
        ended = [r for r in self.live if self.requests[r].state is scheduler.RequestState.FINISHED]
        self.live.difference_update(ended)
        return ended

    def abort(self, rid: int) -> None:
        self.engine.abort_request(rid)
        self.live.discard(rid)

    def preempted(self) -> list[int]:
        victims, self.engine.victims = self.engine.victims, []
        return victims

    def output(self, rid: int) -> list[int]:
        return self.requests[rid].generated_ids

    def free_blocks(self) -> int:
        return self.engine.block_manager.num_free_blocks


make_scheduler = PavanScheduler

"""Its scheduler: prompts are fed token by token, and it calls the model inside an endless loop."""

import queue
import types
from typing import Any

import scheduler
from cache_manager import KVCacheManager

from kvproof.contract import BadInput, require_new, require_tokens
from kvproof_impls.inside import Loop, Row

scheduler.print = lambda *_: None


class Engine(scheduler.Scheduler):
    """Hands over in each call of the model, and once a round where it first asks for its limit."""

    def forward_batch(self, *_: object) -> list[int]:
        self.begun = False
        return self.loop.hand_over([(r.rid, r.pos, r.pos + 1, list(r.block_table)) for r in self.active_requests])

    @property
    def max_batch_size(self) -> int:
        if not self.begun:
            self.begun = True
            self.loop.hand_over([])
        return self.limit

    @max_batch_size.setter
    def max_batch_size(self, limit: int) -> None:
        self.limit, self.loop, self.begun, self.model = limit, Loop(), False, self
        scheduler.time = types.SimpleNamespace(sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.begun = False


class CorreasScheduler:
    capabilities = frozenset({"output", "chunked"})

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        pool = KVCacheManager(1, num_blocks, block_size, 1, 1, device="cpu")
        self.engine, self.live = Engine(None, pool, -1, max_seqs), dict[int, Any]()
        self.requests, self.rows = dict[int, Any](), list[Row]()
        self.engine.loop.start(self.engine.process_loop)

    def __del__(self) -> None:
        self.engine.loop.close()

    def submit(self, rid: int, tokens: list[int], max_new: int, priority: int = 0) -> None:
        require_new(rid, self.requests)
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        facts = {"prompt_tokens": list(tokens), "max_new_tokens": max_new, "out_queue": queue.Queue()}
        facts |= {"block_table": [], "generated_tokens": [], "pos": 0, "get_token_to_feed": int}
        self.requests[rid] = self.live[rid] = types.SimpleNamespace(rid=rid, **facts)
        self.engine.add_request(self.live[rid])

    def has_work(self) -> bool:
        return bool(self.live)

    def plan(self) -> list[Row]:
        self.rows = self.engine.loop.go_on([])
        return self.rows

    def feed(self, tokens: list[int]) -> list[int]:
        if self.rows:
            self.engine.loop.go_on(tokens)
        ended = [r for r in self.live if self.live[r].pos and self.live[r] not in self.engine.active_requests]
        for rid in ended:
            del self.live[rid]
        return ended

    def abort(self, rid: int) -> None:  # it has none; who is active ends with the next token
        if (request := self.live.pop(rid, None)) in self.engine.pending_requests.queue:
            self.engine.pending_requests.queue.remove(request)
        elif request is not None:
            request.max_new_tokens = 0

    def preempted(self) -> list[int]:
        return []

    def output(self, rid: int) -> list[int]:
        return self.requests[rid].generated_tokens

    def free_blocks(self) -> int:
        return len(self.engine.kv_manager.free_blocks)


make_scheduler = CorreasScheduler

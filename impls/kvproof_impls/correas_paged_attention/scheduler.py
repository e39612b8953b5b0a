"""Its scheduler: prompts are fed token by token, and it calls the model inside an endless loop."""

import queue
import types
from typing import Any

import scheduler
from cache_manager import KVCacheManager

from kvproof_impls.inside import InsideScheduler, Loop

scheduler.print = lambda *_: None


class Engine(scheduler.Scheduler):
    """Hands over in each call of the model, and where it asks for its limit first in a round."""

    def forward_batch(self, *_: object) -> list[int]:
        self.begun = False
        active = self.active_requests
        return self.loop.hand_over([(r.rid, r.pos, r.pos + 1, list(r.block_table)) for r in active])

    @property
    def max_batch_size(self) -> int:
        if not self.begun:
            self.begun = True
            self.loop.hand_over([])
        return self.limit

    @max_batch_size.setter
    def max_batch_size(self, limit: int) -> None:
        self.limit, self.loop, self.begun, self.model = limit, Loop(), False, self
        scheduler.time = types.SimpleNamespace(sleep=lambda _: setattr(self, "begun", False))


class CorreasScheduler(InsideScheduler):
    capabilities = frozenset({"output", "chunked"})

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        pool = KVCacheManager(1, num_blocks, block_size, 1, 1, device="cpu")
        self.engine = Engine(None, pool, -1, max_seqs)
        super().__init__(self.engine.loop, self.engine.process_loop)

    def request(self, rid: int, tokens: list[int], max_new: int) -> types.SimpleNamespace:
        facts = {"prompt_tokens": tokens, "max_new_tokens": max_new, "out_queue": queue.Queue(), "pos": 0}
        facts |= {"block_table": [], "generated_tokens": [], "get_token_to_feed": int}
        request = types.SimpleNamespace(rid=rid, **facts)
        self.engine.add_request(request)
        return request

    def drop(self, request: Any) -> None:  # it has none: an active one ends with its next token
        if request in self.engine.pending_requests.queue:
            self.engine.pending_requests.queue.remove(request)
        request.max_new_tokens, request.rid = 0, -1  # its id may come again before it has ended

    def ended(self, request: Any) -> bool:
        return request.pos > 0 and request not in self.engine.active_requests

    def output(self, rid: int) -> list[int]:
        return self.requests[rid].generated_tokens

    def free_blocks(self) -> int:
        return len(self.engine.kv_manager.free_blocks)


make_scheduler = CorreasScheduler

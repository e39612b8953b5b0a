"""The scheduler of continuous batching, FIFO as by default, and the steps of its engine around it."""

from __future__ import annotations

from transformers.generation.continuous_batching.offloading_manager import OffloadingManager
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from kvproof.contract import BadInput, require_new, require_tokens
from kvproof_impls.transformers import adapter


class Scheduler:
    capabilities = frozenset({"prefix", "output", "chunked", "tight_budget"})
    policy = {"order": "none"}  # noqa: RUF012  it goes past what does not fit now

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        self.cache, self.budget = adapter.cache(num_blocks, block_size, max_tokens=max_tokens), max_tokens
        self.queue = FIFOScheduler(self.cache, safety_margin=None, max_requests_per_batch=max_seqs)
        self.offloading = OffloadingManager(self.cache, self.queue, 0, 0.5, None, adapter.ALONE)
        self.planned: list = []
        self.victims: list[int] = []
        self.ended: dict[int, RequestState] = {}

    def states(self):
        return {**self.queue.active_requests, **self.queue.waiting_requests}

    def submit(self, rid, tokens, max_new, priority=0):
        require_new(rid, list(map(int, self.states())))
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        self.queue.add_waiting_request(RequestState(str(rid), list(tokens), max_new_tokens=max_new))

    def has_work(self):
        return self.queue.has_pending_requests()

    def plan(self):
        """Its prepare_next_batch, without tensors."""
        self.planned = []
        if not self.has_work():
            return []
        batch = self.schedule()
        while batch is None:
            if not self.offload():
                raise RuntimeError("No requests can be scheduled and no requests can be offloaded.")
            batch = self.schedule()
        if batch and self.queue.starved_requests:
            self.offload()
        rows = []
        for future in batch:
            state, low = future.state, future.state.position_offset
            state.position_offset += future.query_length
            table = self.cache.cache_allocators["full_attention"].block_table[state.request_id]
            rows.append((int(state.request_id), low, state.position_offset, list(table)))
        self.planned = batch
        return rows

    def schedule(self):
        return self.queue.schedule_batch(self.budget, self.cache.max_tokens_read)[0]

    def offload(self):
        before = set(self.queue.active_requests)
        done = self.offloading.offload_requests()
        self.victims += map(int, before - set(self.queue.active_requests))
        return done

    def feed(self, tokens):
        """Its update_batch."""
        finished = []
        for future, token in zip(self.planned, tokens, strict=True):
            state = future.state
            if future.has_new_token:
                if state.generated_len() == 0:
                    state.status = RequestStatus.DECODING
                ended = state.update_and_check_completion(token, None)
                self.cache.mark_complete_blocks(state, future.complete_blocks)
                if ended:
                    self.queue.finish_request(state.request_id)
                    self.queue.block_new_requests = False
                    finished.append(int(state.request_id))
                    self.ended[finished[-1]] = state
            elif state.status == RequestStatus.PREFILLING:
                self.cache.mark_complete_blocks(state, future.complete_blocks)
        self.planned = []
        self.queue.clear_cancelled_requests()
        return finished

    def abort(self, rid):
        self.queue.set_request_cancellation(str(rid))
        if not self.planned:  # its loop clears them between two batches
            self.queue.clear_cancelled_requests()

    def preempted(self):
        victims, self.victims = self.victims, []
        return victims

    def output(self, rid):
        state = self.ended.get(rid) or self.states()[str(rid)]
        return state.to_generation_output().generated_tokens

    def free_blocks(self):
        return adapter.free_blocks(self.cache)


make_scheduler = Scheduler

"""The scheduler of LMDeploy: a step is one of prompts, while any waits and fits, or one of decodes."""

from __future__ import annotations

import numpy as np
from lmdeploy.pytorch.messages import MessageStatus, SamplingParam, UpdateTokenMode

from kvproof.contract import BadInput, Refused, require_new, require_tokens
from kvproof_impls.lmdeploy import adapter


class LMDeployScheduler:
    capabilities = frozenset({"prefix", "output"})
    policy = {"order": "fcfs", "overtake": 0}  # noqa: RUF012

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        self.engine = adapter.engine(num_blocks, block_size, True, max_seqs, max_tokens)
        self.longest = max_tokens
        self.engine.preempt_seqs = self.preempt  # the one place where a preemption can be seen
        self.live: dict = {}
        self.outputs: dict[int, list[int]] = {}
        self.planned: list = []
        self.victims: list[int] = []

    def submit(self, rid, tokens, max_new, priority=0):
        require_new(rid, self.live)
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        if len(tokens) + max_new - 1 > self.longest:  # longer prompts are cut by its engine, not played here
            raise Refused(f"{len(tokens)} + {max_new} tokens: a step computes {self.longest}")
        params = SamplingParam(max_new_tokens=max_new)
        self.live[rid] = self.engine.add_session(rid).add_sequence(tokens, params)

    def has_work(self):
        return bool(self.live)

    def plan(self):
        self.engine.tick()
        self.planned, self.mode = [], UpdateTokenMode.PREFILL
        if self.engine.has_waiting():
            self.planned = self.engine.schedule(is_prefill=True).running
            self.engine.activate_seqs(self.planned)
        running = [m for m in self.live.values() if m.status == MessageStatus.RUNNING]
        if running and not self.planned:
            self.mode = UpdateTokenMode.DECODE
            valid = self.engine.schedule_running(running, num_required_tokens=0, prealloc_size=0)
            self.planned = [m for m, ok in zip(running, valid, strict=True) if ok]
        tables = self.engine.get_block_tables(self.planned)
        return [
            (m.session_id, m.num_history_ids, m.num_all_ids, t.tolist())
            for m, t in zip(self.planned, tables, strict=True)
        ]

    def feed(self, tokens):
        finished = []
        for message, token in zip(self.planned, tokens, strict=True):
            rid = message.session_id
            if self.live.get(rid) is not message:
                continue
            message.update_token_ids(np.array([token]), mode=self.mode)
            if message.num_new_tokens >= message.sampling_param.max_new_tokens:
                message.finish()
                self.outputs[rid] = message.generated_ids.tolist()
                self.abort(rid)
                finished.append(rid)
        return finished

    def abort(self, rid):
        if self.live.pop(rid, None) is not None:
            self.engine.end_session(rid)

    def preempt(self, messages):
        self.victims += [m.session_id for m in messages]
        type(self.engine).preempt_seqs(self.engine, messages)

    def preempted(self):
        victims, self.victims = self.victims, []
        return victims

    def output(self, rid):
        return self.live[rid].generated_ids.tolist() if rid in self.live else self.outputs[rid]

    def free_blocks(self):
        return adapter.free_blocks(self.engine)


make_scheduler = LMDeployScheduler

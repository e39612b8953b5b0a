"""Its scheduler, without program-aware serving, as it is by default."""

import types

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.core.scheduler import Scheduler
from minivllm.core.sequence import SamplingParams, Sequence

from kvproof.contract import BadInput, require_new, require_tokens


class VladScheduler:
    capabilities = frozenset({"output"})
    policy = types.MappingProxyType({"order": "fcfs", "overtake": 0})

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        cache = CacheConfig(block_size=block_size, num_blocks=num_blocks, watermark=0)
        limits = SchedulerConfig(max_num_seqs=max_seqs, max_num_batched_tokens=max_tokens)
        self.engine, self.requests = Scheduler(cache, limits, num_blocks), dict[int, Sequence]()

    def submit(self, rid: int, tokens: list[int], max_new: int, priority: int = 0) -> None:
        require_new(rid, [r for r, seq in self.requests.items() if not seq.is_finished])
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        params = SamplingParams(max_tokens=max_new, ignore_eos=True)
        self.requests[rid] = Sequence(list(tokens), params, rid)
        self.engine.add(self.requests[rid])

    def has_work(self) -> bool:
        return self.engine.has_unfinished()

    def plan(self) -> list[tuple[int, int, int, list[int]]]:
        plan = self.engine.schedule()
        self.planned, self.victims = list(plan.scheduled), [seq.seq_id for seq in plan.preempted]
        return [(s.seq_id, s.num_computed, s.num_tokens, s.block_table) for s in self.planned]

    def feed(self, tokens: list[int]) -> list[int]:
        for seq, token in zip(self.planned, tokens, strict=True):
            if not seq.is_finished:  # aborted since
                seq.num_computed = seq.num_tokens
                seq.append_token(token)
                seq.maybe_finish(-1)
        return [seq.seq_id for seq in self.engine.free_finished()]

    def abort(self, rid: int) -> None:
        self.engine.abort(rid)

    def preempted(self) -> list[int]:
        victims, self.victims = self.victims, []
        return victims

    def output(self, rid: int) -> list[int]:
        return self.requests[rid].output_ids

    def free_blocks(self) -> int:
        return self.engine.num_free_blocks


make_scheduler = VladScheduler

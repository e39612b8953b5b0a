"""The scheduler of nano-vllm, and of forks that kept its shape: what the adapters to them share."""

import types
from typing import Any

from kvproof.contract import BadInput, Refused, require_new, require_tokens


class NanoScheduler:
    capabilities = frozenset({"prefix", "output", "chunked"})
    policy = types.MappingProxyType({"order": "fcfs", "overtake": 0})
    smallest = 2  # they take a block when len % size == 1
    scheduler: Any
    """What makes their Scheduler of a config."""
    sequence: Any
    params: Any
    """Their Sequence and SamplingParams."""

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        if block_size < self.smallest:
            raise Refused(f"block size {block_size} is not served: needs {self.smallest} or more")
        self.sequence.block_size = block_size  # theirs is one for the whole process
        config = types.SimpleNamespace(max_num_seqs=max_seqs, max_num_batched_tokens=max_tokens, eos=-1)
        config.num_kvcache_blocks, config.kvcache_block_size = num_blocks, block_size
        config.block_size, config.max_model_len, config.chunked_prefill = block_size, 2**31, True
        self.engine = self.scheduler(config)
        self.engine.preempt = self._preempt  # the one place where a preemption can be seen
        self.live: dict[int, Any] = {}
        self.planned: list[Any] = []
        self.victims: list[int] = []
        self.outputs: dict[int, list[int]] = {}

    def submit(self, rid: int, tokens: list[int], max_new: int, priority: int = 0) -> None:
        require_new(rid, self.live)
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        self.live[rid] = self.sequence(tokens, self.params(max_tokens=max_new, ignore_eos=True))
        self.live[rid].rid = rid
        self.engine.add(self.live[rid])

    def has_work(self) -> bool:
        return not self.engine.is_finished()

    def plan(self) -> list[tuple[int, int, int, list[int]]]:
        self.planned = self.schedule() if self.has_work() else []
        return [(seq.rid, *self.range(seq), seq.block_table) for seq in self.planned]

    def schedule(self) -> list[Any]:
        sequences, self.prefill = self.engine.schedule()
        return sequences

    def range(self, seq: Any) -> tuple[int, int]:
        return seq.num_cached_tokens, seq.num_cached_tokens + seq.num_scheduled_tokens

    def feed(self, tokens: list[int]) -> list[int]:
        pairs = [(s, t) for s, t in zip(self.planned, tokens, strict=True) if self.live.get(s.rid) is s]
        if pairs:  # who was aborted since the plan is not among them
            self.postprocess([s for s, _ in pairs], [t for _, t in pairs])
        finished = [s.rid for s, _ in pairs if s.is_finished]
        for rid in finished:
            self.outputs[rid] = self.live.pop(rid).completion_token_ids
        return finished

    def postprocess(self, sequences: list[Any], tokens: list[int]) -> None:
        self.engine.postprocess(sequences, tokens, self.prefill)

    def abort(self, rid: int) -> None:  # they have none; this is what they do when a request ends
        seq = self.live.pop(rid, None)
        for queue in (self.engine.waiting, self.engine.running):
            if seq in queue:
                queue.remove(seq)
        if seq is not None:
            self.engine.block_manager.deallocate(seq)

    def _preempt(self, seq: Any) -> None:
        self.victims.append(seq.rid)
        type(self.engine).preempt(self.engine, seq)

    def preempted(self) -> list[int]:
        victims, self.victims = self.victims, []
        return victims

    def output(self, rid: int) -> list[int]:
        return self.live[rid].completion_token_ids if rid in self.live else self.outputs[rid]

    def free_blocks(self) -> int:
        return len(self.engine.block_manager.free_block_ids)

"""Its scheduler, without chunks and swap tier, as it is by default."""

import torch
from mini_vllm.block_manager import KVCache
from mini_vllm.config import EngineConfig
from mini_vllm.sampling import SamplingParams
from mini_vllm.scheduler import Scheduler
from mini_vllm.sequence import Sequence

from kvproof.contract import BadInput, require_new, require_tokens


class RamyaScheduler:
    capabilities = frozenset({"output"})
    cached = False

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        limits = {"max_num_seqs": max_seqs, "max_num_batched_tokens": max_tokens, "max_model_len": 2**31}
        config = EngineConfig(enable_prefix_cache=self.cached, **limits)
        config.block_size = block_size  # set here, for it wants 4, 8, 16 or 32 for its Triton kernel
        self.engine = Scheduler(config, KVCache(1, 1, 1, num_blocks, block_size, torch.float64, "cpu"))
        self.requests: dict[int, Sequence] = {}

    def submit(self, rid: int, tokens: list[int], max_new: int, priority: int = 0) -> None:
        require_new(rid, [r for r, seq in self.requests.items() if not seq.status.is_finished])
        require_tokens(tokens)
        if type(max_new) is not int or max_new < 1:
            raise BadInput(f"max_new {max_new!r}: needs an int of 1 or more")
        params = SamplingParams(max_tokens=max_new, ignore_eos=True)
        self.requests[rid] = Sequence("", list(tokens), params, priority, seq_id=rid)
        self.engine.add_seq(self.requests[rid])

    def has_work(self) -> bool:
        return self.engine.has_work

    def plan(self) -> list[tuple[int, int, int, list[int]]]:
        self.planned = self.engine.schedule()
        rows = [(seq, seq.num_cached_tokens) for seq in self.planned.prefill_seqs]
        rows += [(seq, seq.seq_len - 1) for seq in self.planned.decode_seqs]
        return [(seq.seq_id, lo, seq.seq_len, seq.block_table.as_list()) for seq, lo in rows]

    def feed(self, tokens: list[int]) -> list[int]:
        for seq, token in zip(self.planned.prefill_seqs + self.planned.decode_seqs, tokens, strict=True):
            if not seq.status.is_finished:  # aborted since
                seq.append_output_token(token)
                seq.check_stop(None)
        self.engine.register_prefill_cache(self.planned.prefill_seqs)
        return [seq.seq_id for seq in self.engine.finalize_finished()]

    def abort(self, rid: int) -> None:
        self.engine.abort_seq(rid)

    def preempted(self) -> list[int]:
        return []  # without the swap tier it gives up who cannot grow

    def output(self, rid: int) -> list[int]:
        return self.requests[rid].output_token_ids

    def free_blocks(self) -> int:
        return self.engine.kv_cache.allocator.num_free

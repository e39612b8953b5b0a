"""Its scheduler: it calls the model inside a step, once for each admission and once for all who decode."""

import types

from engine import scheduler
from engine.block_manager import BlockManager
from engine.config import EngineConfig

from kvproof.contract import Refused
from kvproof_impls.inside import InsideScheduler, Loop


def prefill(loop: Loop, cache: object, blocks: BlockManager, rid: int, context: list[int]) -> int:
    """Theirs without the model; its answer stands for the logits."""
    return loop.hand_over([(rid, 0, len(context), blocks.allocate_sequence(rid, len(context)))])[0]


def decode(loop: Loop, cache: object, blocks: BlockManager, rids: list[int], last: object) -> list[int]:
    for rid in rids:
        blocks.append_token(rid)
    lengths = {rid: blocks.num_tokens(rid) for rid in rids}
    return loop.hand_over([(rid, n - 1, n, blocks.block_table(rid)) for rid, n in lengths.items()])


scheduler.paged_prefill, scheduler.paged_decode_step = prefill, decode
scheduler.PagedKVCache = lambda *_, **__: None


class Engine(scheduler.Scheduler):
    def _sample(self, logits: int, request: scheduler.Request) -> int:
        return logits

    def _preempt_youngest(self) -> None:
        self.victims.append(self.running[-1].request_id)
        super()._preempt_youngest()


class PavanScheduler(InsideScheduler):
    capabilities = frozenset({"output"})
    policy = types.MappingProxyType({"order": "fcfs", "overtake": 0})

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        self.most = max_tokens  # it has no such budget, and computes a prompt in one call
        loop, place = Loop(), types.SimpleNamespace(device="cpu", dtype=None)
        loop.config = types.SimpleNamespace(max_position_embeddings=2**31)
        loop.parameters = lambda: iter([place])
        engine = Engine(loop, EngineConfig(block_size, num_blocks, max_seqs, watermark_blocks=0))
        super().__init__(loop, lambda: (loop.hand_over([]), engine.step()))
        self.engine, engine.victims = engine, self.victims

    def request(self, rid: int, tokens: list[int], max_new: int) -> scheduler.Request:
        if len(tokens) + max_new - 1 > self.most:
            raise Refused(f"more than {self.most} positions")
        request = scheduler.Request(rid, tokens, max_new, temperature=1.0)
        self.engine.add_request(request)
        return request

    def drop(self, request: scheduler.Request) -> None:
        if not self.engine.abort_request(request.request_id):  # its prompt is computed at this moment
            request.max_new_tokens = 0

    def ended(self, request: scheduler.Request) -> bool:
        return request.is_done

    def output(self, rid: int) -> list[int]:
        return self.requests[rid].generated_ids

    def free_blocks(self) -> int:
        return self.engine.block_manager.num_free_blocks


make_scheduler = PavanScheduler

"""Scheduler of tang-jiapeng/nano-vllm-v1: chunks of prompts and decodes in one step, blocks by the chunk."""

from kvproof_impls.checkout import open_package

open_package("nanovllm", "config")
from nanovllm.engine.sequence import Sequence  # noqa: E402

from kvproof_impls.nano_vllm.scheduler import NanoScheduler  # noqa: E402


class NanoV1Scheduler(NanoScheduler):
    smallest = 1

    def schedule(self) -> list[Sequence]:
        return self.engine.schedule()

    def range(self, seq: Sequence) -> tuple[int, int]:
        return seq.num_cached_tokens, seq.num_cached_tokens + seq.num_new_tokens

    def postprocess(self, sequences: list[Sequence], tokens: list[int]) -> None:
        sampling = [i for i, seq in enumerate(sequences) if self.range(seq)[1] == len(seq)]
        self.engine.postprocess(sequences, [tokens[i] for i in sampling], sampling)

    def free_blocks(self) -> int:
        return self.engine.block_manager.num_free_blocks


make_scheduler = NanoV1Scheduler

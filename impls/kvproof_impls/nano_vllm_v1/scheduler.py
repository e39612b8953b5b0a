"""The scheduler of nano-vllm-v1: nano-vllm's, with ranges of its own."""

from typing import Any

from kvproof_impls.nano_vllm.scheduler import NanoScheduler


class NanoV1Scheduler(NanoScheduler):
    smallest = 1

    def schedule(self) -> list[Any]:
        return self.engine.schedule()

    def range(self, seq: Any) -> tuple[int, int]:
        return seq.num_cached_tokens, seq.num_cached_tokens + seq.num_new_tokens

    def postprocess(self, sequences: list[Any], tokens: list[int]) -> None:
        sampling = [i for i, seq in enumerate(sequences) if self.range(seq)[1] == len(seq)]
        self.engine.postprocess(sequences, [tokens[i] for i in sampling], sampling)

    def free_blocks(self) -> int:
        return self.engine.block_manager.num_free_blocks

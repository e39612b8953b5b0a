"""The scheduler of nano-vllm's older API, which computes a prompt in one step: for the forks too."""

from typing import Any

from kvproof_impls.nano_vllm.scheduler import NanoScheduler


class OldNanoScheduler(NanoScheduler):
    capabilities = NanoScheduler.capabilities - {"chunked"}

    def range(self, seq: Any) -> tuple[int, int]:
        return seq.num_cached_tokens if self.prefill else len(seq) - 1, len(seq)

    def postprocess(self, sequences: list[Any], tokens: list[int]) -> None:
        self.engine.postprocess(sequences, tokens)

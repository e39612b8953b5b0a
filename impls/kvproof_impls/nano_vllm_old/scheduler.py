"""The scheduler of KKKZOZ/nano-vllm computes a prompt in one step. The adapter has opened the checkout."""

from nanovllm import config
from nanovllm.engine.sequence import Sequence

from kvproof_impls.nano_vllm.scheduler import NanoScheduler


class OldNanoScheduler(NanoScheduler):
    capabilities = NanoScheduler.capabilities - {"chunked"}

    def __init__(self, num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> None:
        config.block_size = block_size  # one for the whole process
        super().__init__(num_blocks, block_size, max_seqs, max_tokens)

    def range(self, seq: Sequence) -> tuple[int, int]:
        return seq.num_cached_tokens if self.prefill else len(seq) - 1, len(seq)

    def postprocess(self, sequences: list[Sequence], tokens: list[int]) -> None:
        self.engine.postprocess(sequences, tokens)


make_scheduler = OldNanoScheduler

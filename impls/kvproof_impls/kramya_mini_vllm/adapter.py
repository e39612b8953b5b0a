"""K-RAMYA05/mini-vLLM as it is by default, without prefix cache; with the swap tier, on real tensors."""

from kvproof.contract import OutOfBlocks, Refused
from kvproof_impls.kramya_mini_vllm.manager import RamyaManager
from kvproof_impls.kramya_mini_vllm.scheduler import RamyaScheduler


class SwappingManager(RamyaManager):
    capabilities = frozenset({"defer", "swap", "data"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size, entries=0)
        self.out: set[int] = set()

    def swap_out(self, seq: int) -> None:
        if not self.kv.can_swap_out(self.live[seq][0]):
            raise OutOfBlocks("no room in the CPU tier")
        self.kv.swap_out(self.live[seq][0])
        self.out.add(seq)

    def swap_in(self, seq: int) -> None:
        if not self.kv.can_swap_in(self.live[seq][0]):
            raise OutOfBlocks("no room to come back")
        self.kv.swap_in(self.live[seq][0])
        self.out.discard(seq)

    def append(self, seq: int, tokens: list[int]) -> None:
        if seq in self.out:
            raise Refused(f"sequence {seq} is swapped out")
        super().append(seq, tokens)

    def free(self, seq: int) -> None:
        if seq in self.out:
            self.kv.cpu_allocator.free_many(self.live.pop(seq)[0].as_list())
            self.out.discard(seq)
        else:
            super().free(seq)

    def table(self, seq: int) -> list[int]:
        return [] if seq in self.out else super().table(seq)

    def write(self, block: int, offset: int, x: float) -> None:
        self.kv.key_cache[0, block, 0, offset, 0] = x

    def read(self, block: int, offset: int) -> float:
        return float(self.kv.key_cache[0, block, 0, offset, 0])


make, make_scheduler = SwappingManager, RamyaScheduler

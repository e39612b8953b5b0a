"""pavanbobba09/mini-vllm, read from a checkout: its block manager; its scheduler is in scheduler.py."""

from kvproof.contract import OutOfBlocks, Refused, require_new, require_tokens
from kvproof_impls.checkout import open_package

open_package("engine", "inference", "model")
from engine import block_manager  # noqa: E402

from kvproof_impls.pavan_mini_vllm.scheduler import make_scheduler  # noqa: E402, F401


class PavanManager:
    capabilities = frozenset({"slots"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = block_manager.BlockManager(num_blocks, block_size)

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.manager._block_tables)
        require_tokens(tokens)
        try:
            self.manager.allocate_sequence(seq, len(tokens))
        except block_manager.OutOfBlocksError as error:
            raise OutOfBlocks(str(error)) from None
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        try:
            self.manager.append_token(seq)
        except block_manager.OutOfBlocksError as error:
            raise OutOfBlocks(str(error)) from None

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache

    def free(self, seq: int) -> None:
        self.manager.free_sequence(seq)

    def table(self, seq: int) -> list[int]:
        return self.manager.block_table(seq)

    def free_blocks(self) -> int:
        return self.manager.num_free_blocks

    def slots(self, seq: int, lo: int, hi: int) -> list[int]:
        if not 0 <= lo <= hi <= self.manager.num_tokens(seq):
            raise Refused(f"sequence {seq} has no positions {lo} to {hi - 1}")  # theirs asks for no more
        return self.manager.slots_for_range(seq, lo, hi)


make = PavanManager

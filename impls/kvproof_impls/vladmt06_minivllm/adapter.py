"""vladmt06/minivllm, read from a checkout: its block allocator, and its scheduler."""

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_package

open_package("minivllm")
open_package("minivllm.core")
from minivllm.core.sequence import Sequence  # noqa: E402
from minivllm.memory.allocator import BlockAllocator  # noqa: E402

from kvproof_impls.vladmt06_minivllm.scheduler import make_scheduler  # noqa: E402, F401


class VladManager:
    capabilities = frozenset({"refcount", "selfcheck"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool, self.block_size, self.live = BlockAllocator(num_blocks), block_size, {}

    def _take(self, request: Sequence, length: int) -> None:
        missing = -(-length // self.block_size) - len(request.block_table)
        if not self.pool.can_allocate(missing):
            raise OutOfBlocks(f"no {missing} free blocks")
        request.block_table.extend(self.pool.allocate(missing))

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = Sequence(list(tokens))
        self._take(request, len(tokens))
        self.live[seq] = request
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        self._take(self.live[seq], self.live[seq].num_tokens + 1)
        self.live[seq].append_token(tokens[0])

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache

    def free(self, seq: int) -> None:
        self.pool.free(self.live.pop(seq).block_table)

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return self.pool.num_free

    def refcount(self, block: int) -> int:
        return self.pool.refcount(block)

    def selfcheck(self) -> list[str]:
        try:
            self.pool.check_invariants()
        except AssertionError as error:
            return [str(error)]
        return []


make = VladManager

"""KKKZOZ/nano-vllm, read from a checkout: a block manager of the older API that most forks have."""

from kvproof.contract import OutOfBlocks, Refused, require_new, require_tokens
from kvproof_impls.checkout import open_package

(config,) = open_package("nanovllm", "config")
config.get_config = lambda: config
from nanovllm.engine.block_manager import BlockManager, Sequence  # noqa: E402

from kvproof_impls.nano_vllm_old.scheduler import make_scheduler  # noqa: E402, F401


class OldNanoManager:
    capabilities = frozenset(
        {"prefix"}
    )  # no defer: `allocate` finds and publishes before a token is computed
    guard = 64  # it compares the block's own tokens; what comes before them is told by a 64-bit hash

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if block_size < 2:  # it takes a block when len % size == 1
            raise Refused(f"block size {block_size} is not served: needs 2 or more")
        config.block_size = block_size  # one for the whole process
        self.manager, self.live = BlockManager(num_blocks, block_size), {}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = Sequence(tokens)
        if not self.manager.can_allocate(request):
            raise OutOfBlocks(f"no room for {request.num_blocks} blocks")
        self.manager.allocate(request)
        self.live[seq] = request
        return request.num_cached_tokens

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        if not self.manager.can_append(range(len(self.live[seq]) + 1)):  # it asks with the token in
            raise OutOfBlocks("no free block")
        self.live[seq].append_token(tokens[0])
        self.manager.may_append(self.live[seq])

    def commit(self, seq: int, computed: int) -> None:
        pass  # published already

    def free(self, seq: int) -> None:
        self.manager.deallocate(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return len(self.manager.free_block_ids)


make = OldNanoManager

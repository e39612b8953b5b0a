"""A block manager of nano-vllm's older API, which most forks kept: what the adapters to them share."""

from typing import Any

from kvproof.contract import OutOfBlocks, Refused, require_new, require_tokens


class OldNanoManager:
    # no defer: `allocate` finds and publishes before a token is computed
    capabilities = frozenset({"prefix", "probe"})
    guard = 64  # they compare the block's own tokens; what comes before is told by a 64-bit hash

    def __init__(self, manager: Any, sequence: Any, grow: Any) -> None:
        """Their BlockManager, what makes their Sequence of tokens, and what gives it room."""
        if manager.block_size < 2:  # they take a block when len % size == 1
            raise Refused(f"block size {manager.block_size} is not served: needs 2 or more")
        self.manager, self.sequence, self.grow, self.live = manager, sequence, grow, {}

    def can_add(self, seq: int, tokens: list[int]) -> bool:
        return self.manager.can_allocate(self.sequence(tokens))

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        if not self.can_add(seq, tokens):
            raise OutOfBlocks(f"no room for {len(tokens)} tokens")
        request = self.live[seq] = self.sequence(tokens)
        self.manager.allocate(request)
        return request.num_cached_tokens

    def can_append(self, seq: int, n: int = 1) -> bool:  # their scheduler asks with the token in
        return self.manager.can_append(self.sequence([*self.live[seq].token_ids, 0]))

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        if not self.can_append(seq):
            raise OutOfBlocks("no free block")
        request = self.live[seq]
        request.append_token(tokens[0])
        try:
            self.grow(self.manager, request)
        except Exception as error:  # of any kind; nothing has changed but the token
            request.token_ids.pop()
            request.num_tokens, request.last_token = request.num_tokens - 1, request.token_ids[-1]
            raise OutOfBlocks(f"{type(error).__name__}: {error}") from None

    def commit(self, seq: int, computed: int) -> None:
        pass  # published already

    def free(self, seq: int) -> None:
        self.manager.deallocate(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        return list(self.live[seq].block_table)

    def free_blocks(self) -> int:
        return len(self.manager.free_block_ids)

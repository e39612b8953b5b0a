"""For engines whose caches grow a token at a time: what the adapters to them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.contract import OutOfBlocks, require_new, require_tokens


class ByToken:
    """Adds and appends by `grow`; an adapter has `start`, `grow`, `free`, `table` and `free_blocks` besides.

    What a failed add has taken is given back, as that is left to the caller; a failed append undoes nothing.
    """

    full: type[Exception]
    """What the engine raises when no block is left."""
    live: dict[int, Any]

    def start(self, seq: int, tokens: list[int]) -> Any:
        """The engine's object for a new sequence, without tokens."""
        raise NotImplementedError

    def grow(self, cache: Any, token: int) -> None:
        """Make room for a token."""
        raise NotImplementedError

    def free(self, seq: int) -> None:
        raise NotImplementedError

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        self.live[seq] = self.start(seq, tokens)
        try:
            self.append(seq, tokens)
        except OutOfBlocks:
            self.free(seq)
            raise
        return 0

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        cache = self.live[seq]
        require_tokens(tokens)
        try:
            for token in tokens:
                self.grow(cache, token)
        except self.full as error:
            raise OutOfBlocks(str(error)) from None

    def commit(self, seq: int, computed: int) -> None:
        """No prefix cache, or one that publishes when blocks are taken."""

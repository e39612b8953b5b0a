"""Schedulers that are wrong while they are measured: each around a sound one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof_impls.reference.adapter import make_scheduler


class Wrapped:
    """The reference scheduler, to be spoilt."""

    def __init__(self, *shape: int) -> None:
        self.inner = make_scheduler(*shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class EndsEarly(Wrapped):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        self.inner.submit(rid, tokens, max(1, max_new - 1))


class EndsLate(Wrapped):
    def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
        self.inner.submit(rid, tokens, max_new + 1)


class Loses(Wrapped):
    """A block is gone as soon as a request has ended."""

    ended = 0

    def feed(self, tokens: Sequence[int]) -> list[int]:
        finished: list[int] = self.inner.feed(tokens)
        self.ended += len(finished)
        return finished

    def free_blocks(self) -> int:
        free: int = self.inner.free_blocks()
        return free - (self.ended > 0)


class Repeats(Wrapped):
    """Computes the position before a decode once more."""

    def plan(self) -> list[Any]:
        return [(rid, low - (high - low == 1), high, table) for rid, low, high, table in self.inner.plan()]


class Boasts(Wrapped):
    """Says that the first block is in the cache, though nobody has computed it."""

    def plan(self) -> list[Any]:
        return [(rid, low or 16, high, table) for rid, low, high, table in self.inner.plan()]


class Mixes(Wrapped):
    """Gives everybody the blocks of the first row."""

    def plan(self) -> list[Any]:
        rows = self.inner.plan()
        return [(rid, low, high, [*rows[0][3], *table][: len(table)]) for rid, low, high, table in rows]


class Overshoots(Wrapped):
    def __init__(self, blocks: int, size: int, max_seqs: int, max_tokens: int) -> None:
        super().__init__(blocks, size, max_seqs, 2 * max_tokens)


class Idles(Wrapped):
    def plan(self) -> list[Any]:
        return []

    def feed(self, tokens: Sequence[int]) -> list[int]:
        return []


class Garbles(Wrapped):
    def output(self, rid: int) -> list[int]:
        return [*self.inner.output(rid)[:-1], 999_999]


class Hides(Wrapped):
    """Does not say that it preempts."""

    def preempted(self) -> list[int]:
        self.inner.preempted()
        return []


class Lends(Wrapped):
    """Says that all blocks are free."""

    def free_blocks(self) -> int:
        return 10_000


class Merges(Wrapped):
    """Once they are computed, equal full blocks of two requests become one."""

    blocks, merged = 31, 0

    def plan(self) -> list[Any]:
        rows = [(rid, low, high, list(table)) for rid, low, high, table in self.inner.plan()]
        if self.merged:
            rows[1][3][: self.merged] = rows[0][3][: self.merged]
        return rows

    def feed(self, tokens: Sequence[int]) -> list[int]:
        finished: list[int] = self.inner.feed(tokens)
        self.merged = 0 if finished else self.blocks
        return finished

    def free_blocks(self) -> int:
        free: int = self.inner.free_blocks()
        return free + self.merged


class MergesTails(Merges):
    """The block that both write to next as well."""

    blocks = 32


class Dies(Wrapped):
    def feed(self, tokens: Sequence[int]) -> list[int]:
        raise RuntimeError("out of memory")

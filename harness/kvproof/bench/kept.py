"""Outputs of rounds that no subject can foresee, kept to be checked when their cell ends."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from kvproof.bench.prompts import twin
from kvproof.bench.subject import Subject, Wrong, blocks_for
from kvproof.bench.warm import LEAST_WARM
from kvproof.bench.work import expect

T = TypeVar("T")
UNSEEN = 1000
"""Times `NEW` of the prompts, by which no twin of a timed round differs."""


class Kept(Generic[T]):
    """A copy of what one round of a set-up gave; each round is as likely as any other.

    It is checked when the rounds are over, so that no timed one comes behind a long look at memory. The
    first LEAST_WARM rounds are never timed and do not count.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.answer: T | None = None

    def offer(self, copy: Callable[[], T]) -> None:
        """Perhaps keep this round in the place of the one that is kept."""
        self.rounds += 1
        if self.rounds > LEAST_WARM and not secrets.randbelow(self.rounds - LEAST_WARM):
            self.answer = copy()


def some(n: int) -> set[int]:
    """Up to three of range(n), which nobody can foresee."""
    return {secrets.randbelow(n) for _ in range(3)}


def owned(s: Subject, tables: Iterable[Sequence[int]], tokens: Iterable[int]) -> int:
    """Blocks in the tables of sequences that share none.

    Args:
        tokens: length of each sequence.

    Raises:
        Wrong: a table is not as long as its tokens need, or a block has two owners.
    """
    blocks: list[int] = []
    for table, length in zip(tables, tokens, strict=True):
        expect("blocks of a table", len(table), blocks_for(length, s.block_size), s.lookahead)
        blocks += table
    if "window" in s.capabilities:  # what has left the window reads -1
        blocks = [b for b in blocks if b != -1]
    if len(set(blocks)) < len(blocks):
        block, times = Counter(blocks).most_common(1)[0]
        raise Wrong(f"block {block} is in {times} places of the tables, and nobody shares it")
    if blocks and min(blocks) < 0:
        raise Wrong(f"block {min(blocks)} is in a table")
    return len(blocks)


def published(s: Subject, manager: Any, seq: int, prompt: Any) -> None:
    """A prompt that came and went is found by sequence `seq`, all but its last token.

    A subject that does not know which prompt that will be has to publish them all. By `seq + 1`, which
    differs from it in one token that nobody can foresee, it is found up to there, and no further.

    Raises:
        Wrong: another number of tokens is found, or blocks are missing afterwards.
    """
    at, last, whole = secrets.randbelow(len(prompt)), len(prompt) - 1, manager.free_blocks()
    asked = [("that came before", prompt, last)]
    if "window" not in s.capabilities:  # such a cache may find less, and another part
        asked.append((f"that differs from it in token {at}", twin(prompt, at, UNSEEN), min(at, last)))
    for what, tokens, found in asked:
        n = manager.add(seq, tokens)
        manager.commit(seq, len(tokens))
        manager.free(seq)
        seq += 1
        expect(f"cached tokens of a prompt {what}", n, found // s.block_size * s.block_size, slack(s))
    expect("free blocks after it has come again", manager.free_blocks(), whole)


def slack(s: Subject) -> int:
    """By how many tokens a hit may end behind the last whole block."""
    return s.block_size if "partial" in s.capabilities else 0

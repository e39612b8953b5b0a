"""Prompts and tokens that the timed cells feed, and how sequences enter before the first round."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from kvproof.bench.subject import Subject, Unsupported

LONGEST_SET_UP_S = 20
"""A subject too slow to set a cell up in this time is left out of it, with a note."""
FILL = 128
"""Blocks of one sequence that fills a pool or a cache."""
NEW = 150_000
"""Tokens are below it; one that is changed grows by it, so it becomes none that was there before."""
SPARE = 4096
"""Tokens that a batch may be shifted by to get others."""


def unknown() -> np.random.Generator:
    """Random numbers by a seed of the operating system."""
    return np.random.default_rng(secrets.randbits(63))


def draws() -> Iterator[np.random.Generator]:
    """What the inputs of one round after another are drawn by.

    Those of the first round, which is counted and never timed, are the same in every run. All others are
    unknown: nobody can have worked them out before, nor meets them twice.
    """
    yield np.random.default_rng(1)
    rng = unknown()
    while True:
        yield rng


def draw(n: int, rng: np.random.Generator) -> list[int]:
    """n tokens."""
    found: list[int] = rng.integers(1000, NEW, n).tolist()
    return found


def fixed(n: int, seed: int) -> list[int]:
    """n tokens that are the same in every run."""
    return draw(n, np.random.default_rng(seed))


def twin(prompt: Any, at: int, times: int = 1) -> Any:
    """The same prompt, a list or an array, with another token at one place, so many times `NEW` larger."""
    other = prompt.copy()
    other[at] += NEW * times
    return other


def another(last: list[int] | None, n: int, rng: np.random.Generator, size: int) -> list[int]:
    """n tokens that nothing cached begins with: in half of all cases the twin of `last`, of its first block.

    So length, first and last tokens do not tell whether a prompt was there before.
    """
    if last and rng.integers(2):
        return list(twin(last, int(rng.integers(min(size, n)))))
    return draw(n, rng)


class Batches:
    """Tokens of decode steps: each takes others, at no cost of drawing them."""

    def __init__(self, size: int) -> None:
        self.size, self.tokens = size, fixed(size + SPARE, 8)
        self.array = np.array(self.tokens, dtype=np.int32)
        self.single = [[token] for token in self.tokens]

    def take(self, steps: int, rng: np.random.Generator, form: str) -> list[Any]:
        """The tokens of so many steps, as a "list" or an "array" each, or "single": a list a token."""
        whole: Any = {"list": self.tokens, "array": self.array, "single": self.single}[form]
        return [whole[at : at + self.size] for at in rng.integers(SPARE, size=steps).tolist()]


def needs_arrays(s: Subject, form: str) -> None:
    """A probe on a manager of its own: whoever takes lists only is left out of the array cells."""
    if form == "list":
        return
    try:
        manager = s.open(16)
        tokens = np.arange(1, 2 * s.block_size, dtype=np.int32)
        manager.add(0, tokens)
        manager.commit(0, len(tokens))
        if "steps" in s.capabilities:
            manager.append_batch(np.array([0]), np.array([7], dtype=np.int32))
    except Exception as e:
        raise Unsupported(f"takes no arrays ({type(e).__name__})") from e


def enter(manager: Any, sequences: Iterable[tuple[int, list[int]]]) -> None:
    """Add and commit these sequences before a call is timed; what is put off until somebody looks is done."""
    start = time.perf_counter()
    for seq, tokens in sequences:
        manager.add(seq, tokens)
        manager.commit(seq, len(tokens))
        _in_time(start, "the sequences it starts with take")
    manager.free_blocks()


def leave_behind(manager: Any, sequences: Iterable[tuple[int, list[int]]]) -> list[list[int]]:
    """Let these come and go, one after another, so that they are in the cache; the table that each had."""
    start, tables = time.perf_counter(), []
    for seq, tokens in sequences:
        manager.add(seq, tokens)
        manager.commit(seq, len(tokens))
        tables.append(list(manager.table(seq)))
        manager.free(seq)
        _in_time(start, "the sequences it starts with take")
    return tables


def _in_time(start: float, what: str) -> None:
    if time.perf_counter() - start > LONGEST_SET_UP_S:
        raise Unsupported(f"left out: {what} more than {LONGEST_SET_UP_S} s")


def touch(manager: Any, blocks: int, size: int, lookahead: int = 0) -> None:
    """Use every block once and publish none, so that no timed round is the first to touch its memory."""
    start, seqs = time.perf_counter(), range(blocks // (FILL + lookahead))
    for seq, tokens in alike(seqs, FILL * size):
        manager.commit(seq, manager.add(seq, tokens))
        _in_time(start, "using every block once takes")
    for seq in seqs:
        manager.free(seq)


def alike(seqs: Iterable[int], tokens: int) -> Iterator[tuple[int, list[int]]]:
    """Prompts that differ in their first token only, so that no two share a block of the cache."""
    prompt = fixed(tokens, 7)
    for seq in seqs:
        prompt[0] = seq
        yield seq, prompt

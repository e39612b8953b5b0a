"""Steps of a group of ranks by kind, as operations: the same for a group in one object and for processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, TypeAlias

from kvproof.bench.subject import Unsupported, blocks_for

Operations: TypeAlias = list[tuple[Any, ...]]
KINDS = ("decode", "new blocks", "admission")
PROMPT = 512
"""Tokens of a prompt that is admitted; the first half of them is the common prompt's."""


def tokens(n: int, seed: int) -> list[int]:
    """Ids of a vocabulary of 150,000: as varints nine in ten take three bytes."""
    rng = random.Random(seed)
    return [rng.randrange(150_000) for _ in range(n)]


def pool(sequences: int, blocks: int, rounds: int, size: int) -> int:
    """Blocks that a rank needs for so many rounds of each kind, if it shares nothing."""
    return sequences * (blocks + rounds + 1) + 2 * blocks_for(PROMPT, size)


def steps(sequences: int, blocks: int, size: int) -> Iterator[tuple[str, Operations]]:
    """(kind, operations) of each step, without end; the kind of one that is not measured is empty.

    Tables are full when the first measured step comes, which is one in which all of them grow.

    Raises:
        Unsupported: blocks of under 4 tokens, which leave no steps between two such ones.
    """
    if size < 4:
        raise Unsupported(f"blocks of {size} tokens: the steps of ranks need at least 4")
    common = tokens((blocks - 1) * size, 1)
    prompts = [("add", seq, common + tokens(size - 1, 2 + seq)) for seq in range(sequences)]
    yield "", prompts[:1]  # where there is a cache, the others find its blocks
    yield "", prompts[1:]
    seed, new = 10**6, sequences
    yield "", _decode(sequences, seed)
    while True:
        for place in range(size):
            seed += 1
            kind, more = "decode", list[tuple[Any, ...]]()
            turn = (place - 1) % 3
            if place == 0:
                kind = "new blocks"
            elif turn == 1 and place + 1 < size:
                fresh = tokens(PROMPT - len(common[: PROMPT // 2]), -seed)
                kind, more = "admission", [("add", new, common[: PROMPT // 2] + fresh)]
            elif turn == 2:
                kind, more, new = "", [("free", new)], new + 1
            yield kind, [*more, *_decode(sequences, seed)]


def _decode(sequences: int, seed: int) -> Operations:
    return [("append", seq, [token]) for seq, token in enumerate(tokens(sequences, seed))]

"""The harness plays the model: the next token is a function of all tokens before it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b

POISON = 999_999
"""Fed for a row that samples nothing; a subject that keeps it is found out."""

VALUES = 3
"""So few that equal continuations of different requests are common."""


def next_token(tokens: Sequence[int]) -> int:
    """1..VALUES, decided by the whole history."""
    return 1 + zlib.crc32(bytes(str(tuple(tokens)), "ascii")) % VALUES


def link(before: int, token: int) -> int:
    """The KV of a token behind the KV of the position before it (0 at the start): 63 bits."""
    data = b"%d,%d" % (before, token)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little") >> 1


def chain(tokens: Sequence[int]) -> list[int]:
    """The KV at each position of a history."""
    found, last = [], 0
    for token in tokens:
        last = link(last, token)
        found.append(last)
    return found

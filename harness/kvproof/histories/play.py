"""The harness plays the model: the next token is a function of all tokens before it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

POISON = 999_999
"""Fed for a row that samples nothing; a subject that keeps it is found out."""

VALUES = 3
"""So few that equal continuations of different requests are common."""


def next_token(tokens: Sequence[int]) -> int:
    """1..VALUES, decided by the whole history."""
    return 1 + zlib.crc32(bytes(str(tuple(tokens)), "ascii")) % VALUES

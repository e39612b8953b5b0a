"""What tests of the reference begin with."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof_impls.reference.arrays import Int32
from kvproof_impls.reference.manager import Manager


def blocks(*ids: int) -> Int32:
    """Block ids as the pool takes them."""
    return np.array(ids, np.int32)


def started(manager: Manager, seq: int, tokens: list[int], **keys: Any) -> int:
    """Add and commit all; how many tokens were cached."""
    cached = manager.add(seq, tokens, keys or None)
    manager.commit(seq, len(tokens))
    assert manager.selfcheck() == []
    return cached

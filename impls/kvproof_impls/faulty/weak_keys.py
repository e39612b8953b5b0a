"""Planted faults of keys that are believed although they collide: PREFIX, under the guard "tokens"."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from kvproof_impls.reference.arrays import Index, Int32, Int64, UInt64
from kvproof_impls.reference.hashing import Hasher
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.prefix import PrefixCache

from .registry import fault

Extend: TypeAlias = Callable[[int, Int32], int]
"""The state of a chain behind one more block of tokens."""

MASK = 2**64 - 1


def trusting(extend: Extend) -> type[PrefixCache]:
    """A cache with the keys of this chain, which looks at nothing but the key on a hit."""

    class WeakHasher(Hasher):
        def states(self, tokens: Int32, start: int, before: int, tags: Any) -> UInt64:
            found = []
            for block in tokens:
                before = extend(before, block) & MASK
                found.append(before)
            return np.array(found, np.uint64)

        def extend(self, states: UInt64, tokens: Int32, index: Index, width: int) -> UInt64:
            pairs = zip(states.tolist(), tokens, strict=True)
            return np.array([extend(state, block) & MASK for state, block in pairs], np.uint64)

        def keys(self, states: UInt64) -> Int64:
            return np.where(states == 0, np.uint64(1), states).view(np.int64)

    class TrustingCache(PrefixCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            self.hasher = WeakHasher(block_size)

        def _same(self, blocks: Index, tokens: Int32, parents: Int64) -> Any:
            return self.key.take(blocks) != 0

    return TrustingCache


@fault("KVP-PREFIX-016", "Python's hash() of tokens is trusted", model="vllm-project/vllm#15297")
class HashOfTokensTrusted(Manager):
    prefix_type = trusting(lambda before, tokens: hash((before, hash(tuple(tokens.tolist())))))


@fault("KVP-PREFIX-008", "a chained CRC-32 is trusted", model="none known")
class ChecksumTrusted(Manager):
    prefix_type = trusting(lambda before, tokens: zlib.crc32(tokens.tobytes(), before & 0xFFFFFFFF))


@fault("KVP-PREFIX-008", "h = h * 31 + token is trusted", model="none known")
class RollingHashTrusted(Manager):
    prefix_type = trusting(lambda before, tokens: _rolled(before, tokens.tolist()))


@fault("KVP-PREFIX-001", "keys take the low 17 bits of each token", model="none known")
class HighBitsIgnored(Manager):
    prefix_type = trusting(lambda before, tokens: _whole(before, [t & 0x1FFFF for t in tokens.tolist()]))


@fault("KVP-PREFIX-016", "the keys of blocks are xored, so that their order is lost", model="none known")
class OrderOfBlocksLost(Manager):
    prefix_type = trusting(lambda before, tokens: before ^ _whole(0, tokens.tolist()))


def _rolled(before: int, tokens: list[int]) -> int:
    for token in tokens:
        before = before * 31 + token
    return before


def _whole(before: int, tokens: list[int]) -> int:
    """Strong enough for what is left of the tokens."""
    data = b"".join(value.to_bytes(8, "little") for value in (before, *tokens))
    return zlib.crc32(data) << 32 | zlib.adler32(data[::-1] + data)

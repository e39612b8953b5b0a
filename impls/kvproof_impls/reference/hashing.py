"""Block keys: 64 bits that name a block by its own tokens and by everything before it (chapter 3.2.5).

The KV of a token depends on every token before it, so keys are chained. Three steps, each over all
blocks at once:

    digest[i] = mix(sum_j token[i, j] * R[j] + media[i])           multilinear in the block's tokens
    state[i]  = seed + digest[0] * M**0 + ... + digest[i] * M**i   a wrapping prefix sum
    key[i]    = state[i] | 1                                       never 0, which means "no key"

R and M are fixed odd numbers, arithmetic is modulo 2**64, `mix` is a bijection that brings the high
bits of the sum, which depend on every token, down to the low ones. The seed comes from salt and
adapter, `media` from the items that overlap the block. Nothing here depends on the process: the same
input has the same key everywhere.

Why not a cryptographic hash: a key only finds a candidate. The cache compares the tokens and the
predecessor on every hit, so a collision costs a miss and can never serve foreign KV. Measured on one
core, ns a block of 16 int32 tokens, 8,192 blocks, medians of 9:

    this file, keys as ints                     32
    chain of xxh3-128, one call a block        140
    chain of blake2b with 16 bytes, the same   520
    chain of sha256, the same                  570
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from .arrays import Index, Int32, Int64, UInt64
from .inputs import Domain, Media

_SHIFT = np.uint64(32)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_START = np.uint64(0x2545F4914F6CDD1D)  # a block of zeros must change the state of its chain too
_STEP = 0x9E3779B97F4A7C15 | 5  # odd, 5 modulo 8: its powers repeat only after 2**62
_MASK = 2**64 - 1


def mix(words: UInt64) -> UInt64:
    """A bijection of 64-bit words that spreads their bits, 0 not to 0; works in place."""
    words += _START
    words ^= words >> _SHIFT
    words *= _MIX
    words ^= words >> _SHIFT
    return words


def stable_word(*fields: str | int | None) -> int:
    """64 bits of a hash of these fields, their types, their borders; None differs from ""."""
    digest = hashlib.blake2b(digest_size=8)
    for field in fields:
        data = b"" if field is None else str(field).encode()
        tag = b"n" if field is None else b"s" if isinstance(field, str) else b"i"
        digest.update(tag + struct.pack("<q", len(data)) + data)
    return int.from_bytes(digest.digest(), "little")


def seed_of(domain: Domain) -> int:
    """The start of a chain: what salt and adapter contribute."""
    return stable_word("domain", *domain)


Tag = tuple[Media, ...]
"""The media items that overlap one block, their offsets counted from the start of that block."""


def media_tags(media: tuple[Media, ...], start: int, stop: int, block_size: int) -> dict[int, Tag]:
    """Tags of the blocks among start..stop-1 that an item overlaps, by logical block."""
    tags: dict[int, Tag] = {}
    for offset, length, name in media:
        first = max(start, offset // block_size)
        last = min(stop - 1, (offset + length - 1) // block_size)
        for block in range(first, last + 1):
            item = Media(offset - block * block_size, length, name)
            tags[block] = (*tags.get(block, ()), item)
    return tags


class Hasher:
    """Keys for blocks of `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        words = [stable_word("multiplier", j) | 1 for j in range(block_size)]
        self._multipliers: UInt64 = np.array(words, np.uint64)
        self._powers: UInt64 = np.ones(1, np.uint64)

    def digests(self, tokens: Int32) -> UInt64:
        """[n] digests of int32 [n, block_size], without media."""
        linear: UInt64 = tokens.astype(np.uint64) @ self._multipliers
        return mix(linear)

    def extend(self, states: UInt64, tokens: Int32, index: Index, width: int) -> UInt64:
        """[n] chain states, each after one block more: block index[k] < width with tokens[k]."""
        after = self.digests(tokens)
        after *= self._power(width).take(index)
        after += states
        return after

    def states(self, tokens: Int32, start: int, before: int, tags: dict[int, Tag]) -> UInt64:
        """[n] chain states after blocks start..start+n-1; `before` is the state ahead of them."""
        count = len(tokens)
        linear: UInt64 = tokens.astype(np.uint64) @ self._multipliers
        for block, tag in tags.items():
            word = stable_word(*(field for item in tag for field in item))
            linear[block - start] = (linear.item(block - start) + word) & _MASK
        states = mix(linear)
        states *= self._power(start + count)[start : start + count]
        states.cumsum(out=states)
        states += np.uint64(before)
        return states

    def keys(self, states: UInt64) -> Int64:
        """[n] keys as int64, none of them 0."""
        return states.view(np.int64) | 1

    def _power(self, count: int) -> UInt64:
        """Powers of the step, at least 0..count."""
        if count >= len(self._powers):
            size = max(64, 2 * count)
            steps = np.full(size, _STEP, np.uint64)
            steps[0] = 1
            self._powers = np.cumprod(steps)
        return self._powers

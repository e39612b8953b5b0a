"""Planted faults of block keys and their look-up: PREFIX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from kvproof_impls.reference.arrays import Index, Int32, Int64, UInt64
from kvproof_impls.reference.hashing import Hasher
from kvproof_impls.reference.inputs import Domain, Media
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.prefix import Hit, PrefixCache

from .registry import fault

Items: TypeAlias = tuple[Media, ...]


def blind_to(columns: slice) -> type[PrefixCache]:
    """A cache whose keys and whose token check leave out these tokens of each block."""

    class BlindCache(PrefixCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            self.hasher._multipliers[columns] = 0

        def _same(self, blocks: Index, tokens: Int32, parents: Int64) -> Any:
            tokens = tokens.copy()
            tokens[:, columns] = self.tokens[blocks, columns]
            return super()._same(blocks, tokens, parents)

    return BlindCache


@fault("KVP-PREFIX-001", "keys ignore the last token of each block", model="kekzl/imp#1301")
class LastTokenIgnored(Manager):
    prefix_type = blind_to(slice(-1, None))


@fault("KVP-PREFIX-001", "keys cover only the first token of each block", model="Pushkinist/rMLX#350")
class FirstTokenOnly(Manager):
    prefix_type = blind_to(slice(1, None))


@fault(
    "KVP-PREFIX-002",
    "a block is known by its own tokens, whatever stands before it",
    model="lmjlmj1234/mini-vllm-continuous-batching-lab: [2,2,5,5] shares the block of [1,1,5,5]",
)
def keys_not_chained(num_blocks: int, block_size: int) -> Manager:
    class UnchainedHasher(Hasher):
        def states(self, tokens: Int32, start: int, before: int, tags: Any) -> UInt64:
            return self.digests(tokens)

        def extend(self, states: UInt64, tokens: Int32, index: Index, width: int) -> UInt64:
            return self.digests(tokens)

    class UnchainedCache(PrefixCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            self.hasher = UnchainedHasher(block_size)

        def _same(self, blocks: Index, tokens: Int32, parents: Int64) -> Any:
            recorded = self.parent.take(blocks)
            domains = (parents < 0) & (recorded < 0)  # salt and adapter still count
            return super()._same(blocks, tokens, np.where(domains, parents, recorded))

    class Faulty(Manager):
        prefix_type = UnchainedCache

    return Faulty(num_blocks, block_size)


def folded(fold: Callable[[Domain, Items], tuple[Domain, Items]]) -> type[PrefixCache]:
    """A cache to which some keys look alike."""

    class FoldedCache(PrefixCache):
        def match(self, tokens: Int32, domain: Domain, media: Items) -> Hit:
            return super().match(tokens, *fold(domain, media))

        def begin(self, row: int, domain: Domain, media: Items, hit: Hit) -> None:
            super().begin(row, *fold(domain, media), hit)

        def block_keys(self, tokens: Int32, domain: Domain, media: Items) -> list[bytes]:
            return super().block_keys(tokens, *fold(domain, media))

    return FoldedCache


@fault("KVP-PREFIX-007", "the salt is left out of the key", model="llm-d/llm-d-router#1389")
class SaltDropped(Manager):
    prefix_type = folded(lambda domain, media: (Domain(None, domain.adapter), media))


@fault(
    "KVP-PREFIX-007",
    "salt and adapter are joined without a tag between them",
    model="vllm-project/vllm#44701",
)
class KeysJoined(Manager):
    prefix_type = folded(lambda domain, media: (Domain("".join(filter(None, domain))), media))


@fault("KVP-PREFIX-007", "media are left out of the key", model="LMCache/LMCache#690")
class MediaDropped(Manager):
    prefix_type = folded(lambda domain, media: (domain, ()))


@fault(
    "KVP-PREFIX-008",
    "16 bits of hash are trusted without a look at the tokens",
    model="vllm-project/vllm#15297",
)
def short_hash_trusted(num_blocks: int, block_size: int) -> Manager:
    class ShortHasher(Hasher):
        def keys(self, states: UInt64) -> Int64:
            return states.view(np.int64) & 0xFFFF | 0x10000

    class TrustingCache(PrefixCache):
        def __init__(self, num_blocks: int, block_size: int) -> None:
            super().__init__(num_blocks, block_size)
            self.hasher = ShortHasher(block_size)

        def _same(self, blocks: Index, tokens: Int32, parents: Int64) -> Any:
            return self.key.take(blocks) != 0

    class Faulty(Manager):
        prefix_type = TrustingCache

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-PREFIX-016",
    "the tokens before a block are told by 64 bits of hash",
    model="GeeeekExplorer/nano-vllm: what comes before the block is told by a 64-bit hash",
)
class HashReliedOn(Manager):
    guard = 64


@fault("KVP-PREFIX-009", "Python's hash() of the strings goes into the keys", model="vllm-project/vllm#51875")
def hash_of_this_process(num_blocks: int, block_size: int) -> Manager:
    class UnstableCache(PrefixCache):
        def block_keys(self, tokens: Int32, domain: Domain, media: Items) -> list[bytes]:
            mask = hash((domain.salt or "", domain.adapter or "")) & 0xFFFFFFFF
            keys = super().block_keys(tokens, domain, media)
            return [(int.from_bytes(key, "little") ^ mask).to_bytes(8, "little") for key in keys]

    class Faulty(Manager):
        prefix_type = UnstableCache

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-PREFIX-015",
    "each look-up of a block compares the tokens from the start",
    model="none known",
)
def compared_from_the_start(num_blocks: int, block_size: int) -> Manager:
    class QuadraticCache(PrefixCache):
        def match(self, tokens: Int32, domain: Domain, media: Items) -> Hit:
            history, last = tokens.tolist(), len(tokens) // self.block_size
            known = {hash(tuple(history[: i * self.block_size])) for i in range(last + 1)}
            assert len(known) <= last + 1
            return super().match(tokens, domain, media)

    class Faulty(Manager):
        prefix_type = QuadraticCache

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-PREFIX-015",
    "after a miss at block 0 each later block is looked up too",
    model="lmjlmj1234/mini-vllm-continuous-batching-lab: later blocks are looked up after a miss",
)
def looked_up_after_a_miss(num_blocks: int, block_size: int) -> Manager:
    class StubbornCache(PrefixCache):
        def match(self, tokens: Int32, domain: Domain, media: Items) -> Hit:
            hit = super().match(tokens, domain, media)
            for block in range(1, 0 if len(hit.blocks) else len(tokens) // self.block_size):
                super().match(tokens[block * self.block_size :], domain, ())
            return hit

    class Faulty(Manager):
        prefix_type = StubbornCache

    return Faulty(num_blocks, block_size)

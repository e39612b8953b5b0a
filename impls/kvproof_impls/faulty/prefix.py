"""Planted faults of what is matched and published: PREFIX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from kvproof_impls.reference.arrays import Int32
from kvproof_impls.reference.inputs import Domain, Media, parse_keys, token_array
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.prefix import Hit, PrefixCache

from .registry import fault

Items: TypeAlias = tuple[Media, ...]


@fault(
    "KVP-PREFIX-003",
    "the look-up goes on after a miss, and heads are evicted before tails",
    model="jianzhnie/mini-vllm: a miss at block 0 and a hit at block 1 are counted as a hit",
)
class LookUpGoesOn(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        n = super().add(seq, tokens, keys)
        row, cache = self.tables.row(seq), self._cache()
        names = cache.block_keys(token_array(tokens)[:-1], *parse_keys(keys))
        for index in range(n // self.block_size, len(names)):
            found = cache.map.get(int.from_bytes(names[index], "little", signed=True))
            if found is not None:
                fresh = self.tables.matrix[row, index : index + 1].copy()
                self.pool.retain(np.array([found]))
                self.tables.matrix[row, index] = found
                self._release(fresh)
                n = (index + 1) * self.block_size
        self.tables.computed[row] = n
        return n

    def _release(self, blocks: Int32) -> None:
        super()._release(blocks[::-1])


@fault("KVP-PREFIX-004", "a hit may be the whole prompt", model="GeeeekExplorer/nano-vllm#144")
def whole_prompt_matched(num_blocks: int, block_size: int) -> Manager:
    class EagerCache(PrefixCache):
        def match(self, tokens: Int32, domain: Domain, media: Items) -> Hit:
            return super().match(np.append(tokens, np.int32(0)), domain, media)

    class Faulty(Manager):
        prefix_type = EagerCache

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-PREFIX-005",
    "equal prompts share their partly filled tail",
    model="lmjlmj1234/mini-vllm-continuous-batching-lab: two equal short prompts share a partial block",
)
def partial_tail_shared(num_blocks: int, block_size: int) -> Manager:
    first_of: dict[tuple[int, ...], int] = {}

    class Faulty(Manager):
        def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
            n = super().add(seq, tokens, keys)
            first, last = first_of.setdefault(tuple(tokens), seq), (len(tokens) - 1) // self.block_size
            other = self.tables.row_of.get(first, -1)
            if len(tokens) % self.block_size and first != seq and last < self.tables.num_blocks[other]:
                row = self.tables.row(seq)
                own = self.tables.matrix[row, last : last + 1].copy()
                self.tables.matrix[row, last] = self.tables.matrix[other, last]
                self.pool.retain(self.tables.matrix[row, last : last + 1])
                self._release(own)
                self.tables.set_length(row, len(tokens))
            return n

    return Faulty(num_blocks, block_size)


@fault("KVP-PREFIX-006", "blocks are published when they are allocated", model="vllm-project/vllm#29387")
class PublishedAtAllocation(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        n = super().add(seq, tokens, keys)
        row = self.tables.row(seq)
        full = len(tokens) // self.block_size
        self._drop(self._cache().publish(row, self.tables.matrix[row], full))
        return n


@fault(
    "KVP-PREFIX-010",
    "new blocks are taken before the matched ones are held",
    model="vllm-project/vllm#10507",
)
class MatchedBlocksEvicted(Manager):
    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        _, values, length, hit = self.plans.add(seq, tokens, keys)
        assert values is not None
        cached = len(hit.blocks) * self.block_size
        fresh = self.pool.take(self.tables.blocks_of(length) - len(hit.blocks))
        self.pool.retain(hit.blocks)
        row = self._new_row(seq)
        self.tables.grow(row, np.concatenate((hit.blocks, fresh)))
        self.tables.set_length(row, length)
        self.tables.computed[row] = cached
        self._cache().begin(row, *parse_keys(keys), hit)
        self._cache().keep(self.tables.matrix[row], cached, values[cached:])
        return cached


@fault(
    "KVP-PREFIX-011",
    "of two equal blocks that are idle the second takes the place of the first, which is lost",
    model="tang-jiapeng/nano-vllm-v1: the second release overwrites the first under one key",
)
class SecondOverwritesFirst(Manager):
    def free(self, seq: int) -> None:
        cache, row = self._cache(), self.tables.row(seq)
        table = self.tables.blocks(row)[: self.tables.computed.item(row) // self.block_size]
        names = cache.block_keys(cache.tokens[table].reshape(-1), Domain(), ())
        for block, name in zip(table.tolist(), names, strict=True):
            key = int.from_bytes(name, "little", signed=True)
            first = cache.map.get(key, block)
            if first != block and self.pool.state[first] < 0:
                cache.map[key], cache.key[block], cache.key[first] = block, key, 0
                cache.parent[block] = cache.parent[first]
                self.pool.state[first] = 0
                self.pool.evictable -= 1
        super().free(seq)


@fault("KVP-PREFIX-012", "a hit is rounded to the nearest block", model="neuralmagic/nm-vllm#3")
def hit_rounded_up(num_blocks: int, block_size: int) -> Manager:
    class RoundingCache(PrefixCache):
        def match(self, tokens: Int32, domain: Domain, media: Items) -> Hit:
            hit, half = super().match(tokens, domain, media), self.block_size // 2
            done = len(hit.blocks) * self.block_size
            if done and half and done + self.block_size < len(tokens):
                agree = (self.tokens[:, :half] == tokens[done : done + half]).all(axis=1)
                near = np.flatnonzero(agree & (self.parent == hit.parent) & (self.key != 0))[:1]
                hit = hit._replace(blocks=np.append(hit.blocks, near.astype(np.int32)))
            return hit

    class Faulty(Manager):
        prefix_type = RoundingCache

    return Faulty(num_blocks, block_size)


@fault(
    "KVP-PREFIX-013",
    "draft tokens are published before they are verified",
    model="vllm-project/vllm#18668",
)
class DraftsPublished(Manager):
    def append(self, seq: int, tokens: Sequence[int]) -> None:
        super().append(seq, tokens)
        row = self.tables.row(seq)
        full = self.tables.seq_lens.item(row) // self.block_size
        self._drop(self._cache().publish(row, self.tables.matrix[row], full))


@fault("KVP-PREFIX-014", "reset says yes and leaves the map", model="vllm-project/vllm#9744")
class ResetForgetsNothing(Manager):
    def reset_prefix_cache(self) -> bool:
        return True


@fault("KVP-PREFIX-014", "reset forgets idle blocks only", model="InternLM/lmdeploy#4917")
class ResetSparesTheRunning(Manager):
    def reset_prefix_cache(self) -> bool:
        idle = self.pool.queued()
        self._cache().forget(idle)
        self.pool.drop(idle.tolist())
        return True

"""The exact counts of a trace: its block keys through the harness's own plain LRU, tail first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvproof.bench.traces import Request
from kvproof.oracle.lru import LruCounter


@dataclass(frozen=True, slots=True)
class Counts:
    """What one pass over a trace gives, in blocks; asked = hits + inserted.

    resident: blocks that can still be matched at the end: inserted - evictions.
    refused: requests longer than the capacity; they count nowhere else.
    """

    asked: int
    hits: int
    evictions: int
    resident: int
    refused: int = 0


class Endless:
    """An infinite cache, kept by id of the trace and not by block: small for a trace of any length."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._nodes: dict[tuple[int, int], int] = {}
        self._held: list[int] = []  # by node: blocks of it that are in the cache

    def request(self, r: Request) -> int:
        """Full blocks of the prompt that it has; afterwards it has all of them."""
        if r.block_ids is None:
            raise ValueError("the request has no block ids; with_ids() gives it new ones")
        parts, left, at, hits, going = r.trace_block // self._size, r.prompt_tokens // self._size, -1, 0, True
        for block in r.block_ids.tolist():
            at = self._nodes.setdefault((at, block), len(self._nodes))
            if at == len(self._held):
                self._held.append(0)
            asked, held = min(parts, left), self._held[at]
            left -= asked
            hits += min(asked, held) if going else 0
            going = going and held >= asked
            self._held[at] = max(held, asked)
        return hits


def block_keys(requests: Iterable[Request], block_size: int) -> Iterator[list[int]]:
    """For each request one key a full block of `block_size` tokens; equal keys, equal prefix.

    A key names an id together with all before it, because the KV of a token depends on them; so
    a trace that repeats an id behind another prefix does not count it as shared.
    """
    nodes: dict[tuple[int, int], int] = {}
    for r in requests:
        if r.block_ids is None:
            raise ValueError("the request has no block ids; with_ids() gives it new ones")
        parts = r.trace_block // block_size
        chain, at = np.empty(len(r.block_ids), dtype=np.int64), -1
        for i, block in enumerate(r.block_ids.tolist()):
            at = chain[i] = nodes.setdefault((at, block), len(nodes))
        keys = (chain[:, None] * parts + np.arange(parts)).ravel()
        yield keys[: r.prompt_tokens // block_size].tolist()


def count(keys: Iterable[Sequence[int]], capacity: int | None) -> Counts:
    """Requests one after another through a cache of `capacity` blocks, None for no bound.

    The blocks of a request are held while it runs, so they are never its own victims.
    """
    cache, refused = LruCounter(capacity), 0
    for one in keys:
        if capacity is not None and len(one) > capacity:
            refused += 1
        else:
            cache.request(one)
    return Counts(cache.asked, cache.hits, cache.evictions, len(cache.cached), refused)


def ceiling(requests: Sequence[Request], block_size: int) -> float:
    """The infinite-cache bound of the token hit rate: tokens in hit blocks / prompt tokens."""
    found = count(block_keys(requests, block_size), None)
    return found.hits * block_size / sum(r.prompt_tokens for r in requests)

"""What the steps of a point read, renewed in place before each round, and the exact answers to it.

The addresses stay and the contents change, by numbers no kernel can know: an answer, a gathered copy or a
table that is kept from an earlier round is wrong in the next.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from kvproof.bench import paged
from kvproof.bench.subject import Wrong


def unknown() -> torch.Generator:
    """Random numbers by a seed of the operating system."""
    return torch.Generator().manual_seed(secrets.randbits(63))


@dataclass
class Inputs:
    """Queries, keys, values and block tables by turn; without tables keys and values are contiguous."""

    memory: paged.Memory
    queries: Sequence[torch.Tensor]
    tables: Sequence[torch.Tensor] = ()
    block_size: int = 0
    swaps: list[tuple[tuple[int, int, int], tuple[int, int, int]]] = field(default_factory=list)
    """Pairs of table entries (rotation, row, column) that have changed places."""
    kept: dict[int, tuple[torch.Tensor, list[torch.Tensor]]] = field(default_factory=dict)
    """Of a turn: positions [2, batch, query heads], and copies of what a step may not write."""

    def renew(self, turns: Iterable[int], layout: str, reorder: bool) -> None:
        """New queries, two table entries that change places, and a new key and value for each query head.

        The key is drawn so that its query gives the one position about as large a part of the answer as
        all others have together: without it, or without the others, the answer is off by about its size.

        Args:
            reorder: whether the tables may change; they return to their order at the next call.
        """
        s, generator = self.memory.shape, unknown()
        for a, b in reversed(self.swaps):
            self._swap(a, b)
        self.swaps.clear()
        heads, turns = (s.batch, s.query_heads, s.head_dim), list(turns)
        # All exchanges first: one of a later turn may change the table of an earlier one.
        exchanged = {turn: self._exchange(turn) for turn in turns} if self.tables and reorder else {}
        for turn in turns:
            drawn = torch.randn(heads, generator=generator)
            self.queries[turn].copy_(drawn)
            positions = torch.randint(s.tokens, (2, *heads[:2]), generator=generator)
            if turn in exchanged:
                row, column = exchanged[turn]
                first = column * self.block_size
                size = min(self.block_size, s.tokens - first)
                positions[:, row, ::2] = first + positions[:, row, ::2] % size
            score = math.log(3.3 * math.sqrt(s.tokens))
            along = drawn * (score * math.sqrt(s.head_dim) / drawn.square().sum(-1, keepdim=True))
            for cache, rows in zip(
                self._caches(layout, turn),
                (along + torch.randn(heads, generator=generator), torch.randn(heads, generator=generator)),
                strict=True,
            ):
                bits = rows.to(cache.dtype).to(cache.device)
                _words(cache)[self._at(layout, turn, positions[0])] = _words(bits)
            self.kept[turn] = (positions, self._state(layout, turn, positions))

    def untouched(self, layout: str, turn: int) -> None:
        """Raises Wrong if a step wrote to its inputs: the answers would be checked by what it left."""
        positions, before = self.kept[turn]
        for was, now in zip(before, self._state(layout, turn, positions), strict=True):
            if not torch.equal(was, now):
                raise Wrong("it has written to its queries, table, keys or values")

    def exact(
        self, layout: str, turn: int, row: int, heads: slice | int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output [dim] and lse of one query head, or [heads, dim] and [heads] of a slice in one group.

        One head is computed in float64, a slice in float32: its error is up to that of a right kernel.
        """
        s = self.memory.shape
        first = heads if isinstance(heads, int) else heads.start
        kv_head, rotation = first // (s.query_heads // s.kv_heads), turn % self.memory.rotations
        caches = self._caches(layout, turn)
        if self.tables:
            table = self.tables[rotation][row]
            k, v = (paged.positions(c, layout, table, s.tokens, kv_head) for c in caches)
        else:
            k, v = (c[row, kv_head] for c in caches)
        precision = torch.float64 if isinstance(heads, int) else torch.float32
        return paged.exact_lse(k, v, self.kept[turn][1][0][row, heads], s.head_dim**-0.5, precision)

    def _caches(self, layout: str, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.tables:
            return self.memory.cache(layout, self.block_size)
        return self.memory.contiguous(turn % self.memory.rotations)

    def _at(self, layout: str, turn: int, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Index into the cache of positions [..., batch, query heads]."""
        s, where = self.memory.shape, self.memory.keys.device
        rows = torch.arange(s.batch, device=where)[:, None]
        kv_heads = torch.arange(s.query_heads, device=where) // (s.query_heads // s.kv_heads)
        positions = positions.to(where)
        if not self.tables:
            return rows, kv_heads, positions
        table = self.tables[turn % self.memory.rotations]
        blocks, offsets = table[rows, positions // self.block_size].long(), positions % self.block_size
        return (blocks, offsets, kv_heads) if layout == "NHD" else (blocks, kv_heads, offsets)

    def _state(self, layout: str, turn: int, positions: torch.Tensor) -> list[torch.Tensor]:
        at = self._at(layout, turn, positions)
        rows = [_words(cache)[at] for cache in self._caches(layout, turn)]
        table = [self.tables[turn % self.memory.rotations].clone()] if self.tables else []
        return [self.queries[turn].clone(), *rows, *table]

    def _exchange(self, turn: int) -> tuple[int, int]:
        """Swap an entry of this turn's table with one of another sequence, if there is one; its place."""
        tables, rotation = self.tables, turn % self.memory.rotations
        batch, width = tables[0].shape
        row, column = secrets.randbelow(batch), secrets.randbelow(width)
        many, mine = len(tables) * batch, rotation * batch + row
        other = (mine + 1 + secrets.randbelow(many - 1)) % many if many > 1 else mine
        pair = (rotation, row, column), (other // batch, other % batch, secrets.randbelow(width))
        self._swap(*pair)
        self.swaps.append(pair)
        return row, column

    def _swap(self, a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
        (i, *at), (j, *to) = a, b
        one, two = self.tables[i][*at].clone(), self.tables[j][*to].clone()
        self.tables[i][*at], self.tables[j][*to] = two, one


def _words(x: torch.Tensor) -> torch.Tensor:
    """The bits, as integers: float8 has no indexed writes, and NaN must equal itself."""
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])

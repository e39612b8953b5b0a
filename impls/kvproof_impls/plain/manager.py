"""Paged KV block manager of lists and dicts (chapter 3.2.1, 3.2.2, 3.2.5). Calls look first, then change."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from kvproof import contract


class Seq(NamedTuple):
    tokens: list[int]
    keys: contract.Keys
    table: list[int]
    names: list[int]  # of its full computed blocks, see `found`


class PlainManager:
    """A block has readers or is idle; an idle one may be found again until another sequence takes it."""

    def __init__(self, num_blocks: int, block_size: int, capabilities: frozenset[str]) -> None:
        if num_blocks < 2 or block_size < 1:
            raise contract.BadInput(f"{num_blocks} blocks of {block_size}: needs 2 or more of 1 or more")
        self.capabilities, self.reserved, self.guard, self.pad = capabilities, frozenset({0}), "tokens", -1
        self.policy: contract.Policy = {"evict": "lru-tail", "watermark": 0, "reserves": "prompt"}
        self.size, self.limit = block_size, (num_blocks - 1) * block_size  # in tokens
        self.seqs, self.readers, self.moved = dict[int, Seq](), Counter[int](), list[tuple[int, int]]()
        self.idle = OrderedDict.fromkeys(range(1, num_blocks))  # blocks without readers, next one first
        # key -> (name, block). A key starts with the name of the block before it, so a name stands
        # for a whole history, and on a hit the dict compares every token of it.
        self.found, self.key_of, self.last_name = dict[object, tuple[int, int]](), dict[int, object](), 0

    def add(self, seq: int, tokens: Sequence[int], keys: contract.Keys | None = None) -> int:
        contract.require_new(seq, self.seqs)
        state = self._find(tokens, keys)
        self._need(state)
        self.readers.update(state.table)
        for block in state.table:  # what was found is held before the rest is taken
            self.idle.pop(block, None)
        self._fill(state)
        self.seqs[seq] = state
        return len(state.names) * self.size

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        contract.require_tokens(tokens)
        state = self._live(seq)
        self._need(state, len(tokens))
        if len(state.tokens) % self.size:
            if self.readers[tail := state.table[-1]] > 1:  # copy-on-write
                self._release([state.table.pop()])
                self._fill(state)
                self.moved.append((tail, state.table[-1]))
            self._forget(state.table[-1])  # cut by truncate: it will not hold what its key says
        state.tokens.extend(tokens)
        self._fill(state)

    def commit(self, seq: int, computed: int) -> None:
        state = self._live(seq, 0, computed)
        while "prefix" in self.capabilities and len(state.names) < computed // self.size:
            key, self.last_name = self._key(state), self.last_name + 1
            name, block = self.found.setdefault(key, (self.last_name, state.table[len(state.names)]))
            self.key_of[block] = key  # of two equal blocks the first one stays
            state.names.append(name)

    def free(self, seq: int) -> None:
        self._release(self._live(seq).table)
        del self.seqs[seq]

    def fork(self, parent: int, child: int) -> None:
        contract.require_new(child, self.seqs)
        state = self._live(parent)
        self.readers.update(state.table)
        self.seqs[child] = Seq(state.tokens[:], state.keys, state.table[:], state.names[:])

    def truncate(self, seq: int, length: int) -> None:
        state, full, keep = self._live(seq, 1, length), length // self.size, ceil(length / self.size)
        self._release(state.table[keep:])
        del state.tokens[length:], state.table[keep:], state.names[full:]

    def table(self, seq: int) -> list[int]:
        return list(self._live(seq).table)

    def free_blocks(self) -> int:
        return len(self.idle)

    def refcount(self, block: int) -> int:
        return self.readers[block]

    def copies(self) -> list[tuple[int, int]]:
        moved, self.moved = self.moved, []
        return moved

    def slots(self, seq: int, lo: int, hi: int) -> list[int]:
        table, size = self._live(seq, 0, lo, hi).table, self.size
        return [table[position // size] * size + position % size for position in range(lo, hi)]

    def batch(self, seqs: Sequence[int]) -> tuple[object, object, object]:
        tables, lengths = [self.table(seq) for seq in seqs], [len(self.seqs[seq].tokens) for seq in seqs]
        width, counts = max(map(len, tables), default=0), np.array([len(t) for t in tables], np.int32)
        rows = np.array([table + [self.pad] * (width - len(table)) for table in tables], np.int32)
        return rows.reshape(len(tables), width), counts, np.array(lengths, np.int32)

    def _live(self, seq: int, *positions: int) -> Seq:
        if seq not in self.seqs:
            raise contract.UnknownSequence(f"no live sequence {seq!r}")
        if (limits := [*positions, len(self.seqs[seq].tokens)]) != sorted(limits):
            raise contract.BadInput(f"positions have to ascend, up to the length: {limits}")
        return self.seqs[seq]

    def _need(self, state: Seq, n: int = 0) -> None:
        """There are idle blocks for it to grow by n tokens, or else to start."""
        taken = ceil((len(state.tokens) + n) / self.size) - len(state.table)
        revived = 0 if n else sum(block in self.idle for block in state.table)
        copied = int(n > 0 and len(state.tokens) % self.size > 0 and self.readers[state.table[-1]] > 1)
        if len(state.tokens) + n > self.limit:
            raise contract.Refused(f"more than the {self.limit} tokens that fit the pool")
        if (cost := taken + revived + copied) > len(self.idle):
            raise contract.OutOfBlocks(f"{cost} blocks needed, {len(self.idle)} free")

    def _key(self, state: Seq) -> object:  # of the block behind those that have a name
        lo, hi = len(state.names) * self.size, (len(state.names) + 1) * self.size
        before = state.names[-1] if lo else (state.keys.get("salt"), state.keys.get("adapter"))
        media = sorted(tuple(item) for item in state.keys.get("media", ()) if lo <= item[0] < hi)
        return before, tuple(state.tokens[lo:hi]), tuple(media)

    def _find(self, tokens: Sequence[int], keys: contract.Keys | None) -> Seq:
        contract.require_tokens(tokens)
        state = Seq(list(tokens), keys or {}, [], [])
        while len(tokens) > (len(state.names) + 1) * self.size and (hit := self.found.get(self._key(state))):
            state.names.append(hit[0])
            state.table.append(hit[1])
        return state  # with the blocks that are cached; one token is left to compute

    def _fill(self, state: Seq) -> None:
        while len(state.table) * self.size < len(state.tokens):
            state.table.append(self.idle.popitem(last=False)[0])
            self._forget(state.table[-1])
            self.readers[state.table[-1]] = 1

    def _release(self, blocks: list[int]) -> None:
        self.readers.subtract(blocks)
        for block in [b for b in reversed(blocks) if not self.readers[b]]:  # the tail is reused first
            self.idle[block] = None
            self.idle.move_to_end(block, last=block in self.key_of)  # what nobody can find goes first

    def _forget(self, block: int) -> None:
        self.found.pop(self.key_of.pop(block, None), None)

"""The prefix cache: which block holds the KV of which history (chapter 3.2.5).

A full block below the committed length is *published*: its key stands in the map and its tokens and
its predecessor are on record. A hit of block b behind block a needs all of

    the same tokens (and media) in b, and   parent[b] == identity of a

where the identity of a published block is its generation and its number, and the generation grows
whenever the block loses its contents. The predecessor of block 0 is its domain (salt, adapter). So,
by induction, a hit proves the whole history, however short or bad the hash is.

Published once: if an equal block is already in the map, a second copy stays unpublished and its
successors name the first one as their predecessor: the sequence borrows it. When a lender loses its
contents, its borrowers publish their own copies at their next commit. A block whose predecessor
lost its identity is an orphan: no walk from block 0 reaches it, and it makes way when its key is
published again.

The chain of a sequence (how far it is published, hash state, predecessor of its next block) stands
in arrays by table row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Bool, Index, Int32, Int64, UInt64
from .domains import Domains
from .hashing import Hasher, Tag, media_tags, seed_of
from .inputs import Domain, Media

NEVER = 2**31 - 1  # `due` of a sequence that publishes nothing any more
_BLOCK = 2**32 - 1  # the part of an identity that is the block
_GENERATION = 2**31 - 1  # generations start again behind it, and an identity is never negative
_UNSET = -(2**63)  # parent of a block that is not published


class Hit(NamedTuple):
    """The matched blocks, and the hash state and identity with which the chain goes on."""

    blocks: Int32
    state: int
    parent: int


class PrefixCache:
    """Keys, predecessors and tokens by block; chains by table row."""

    first_look = 32
    """Blocks hashed before the first look-up; each further piece is `growth` times as large."""

    growth = 64

    domains_type = Domains

    _chain = ("due", "state", "tip", "root")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.hasher = Hasher(block_size)
        self.map: dict[int, int] = {}
        self.key: Int64 = np.zeros(num_blocks, np.int64)  # 0: not published
        self.parent: Int64 = np.zeros(num_blocks, np.int64)
        self.generation: Int32 = np.zeros(num_blocks, np.int32)
        self.tokens: Int32 = np.empty((num_blocks, block_size), np.int32)
        self.media: dict[int, Tag] = {}  # by published block
        # by row: length at which the next block is full; hash state; predecessor; root
        self.due: Int32 = np.zeros(0, np.int32)
        self.state: UInt64 = np.zeros(0, np.uint64)
        self.tip: Int64 = np.zeros(0, np.int64)
        self.root: Int64 = np.zeros(0, np.int64)
        self.row_media: dict[int, tuple[Media, ...]] = {}
        self.borrowed: dict[int, set[int]] = {}  # by row: blocks of its chain that are not its own
        self.lenders: dict[int, set[int]] = {}  # the inverse: rows by such a block
        self.domains = self.domains_type()

    # ------------------------------------------------------------ look-up

    def match(self, tokens: Int32, domain: Domain, media: tuple[Media, ...]) -> Hit:
        """The longest run of published blocks from block 0 that holds these tokens.

        At least one token stays to be computed, so a hit never covers the whole prompt.
        """
        state, parent = self.domains.look_up(domain)
        if parent is None:
            return Hit(np.empty(0, np.int32), state, 0)
        found: list[Int32] = []
        start, size, limit = 0, self.first_look, (len(tokens) - 1) // self.block_size
        while start < limit:
            stop = min(limit, start + size)
            piece = tokens[start * self.block_size : stop * self.block_size].reshape(-1, self.block_size)
            tags = media_tags(media, start, stop, self.block_size)
            states = self.hasher.states(piece, start, state, tags)
            blocks = self._look_up(self.hasher.keys(states))
            blocks = blocks[: self._equal(blocks, piece, parent, start, tags)]
            if len(blocks):
                found.append(blocks)
                state, parent = int(states[len(blocks) - 1]), self.identity(int(blocks[-1]))
            if len(blocks) < stop - start:
                break
            start, size = stop, self.growth * size
        return Hit(np.concatenate(found) if found else np.empty(0, np.int32), state, parent)

    def block_keys(self, tokens: Int32, domain: Domain, media: tuple[Media, ...]) -> list[bytes]:
        """The key of each full block, 8 bytes little-endian."""
        full = len(tokens) // self.block_size
        blocks = tokens[: full * self.block_size].reshape(full, self.block_size)
        tags = media_tags(media, 0, full, self.block_size)
        keys = self.hasher.keys(self.hasher.states(blocks, 0, seed_of(domain), tags))
        return [key.to_bytes(8, "little", signed=True) for key in keys.tolist()]

    def _look_up(self, keys: Int64) -> Int32:
        """Blocks in the map under these keys, up to the first that is missing."""
        blocks = list(map(self.map.get, keys.tolist()))
        if None in blocks:
            blocks = blocks[: blocks.index(None)]
        return np.array(blocks, np.int32)

    def _equal(self, blocks: Int32, tokens: Int32, parent: int, start: int, tags: dict[int, Tag]) -> int:
        """How many of these blocks, from the first on, really hold these tokens behind `parent`."""
        if not len(blocks):
            return 0
        same = self._same(blocks, tokens[: len(blocks)], self._parents(blocks, parent))
        if self.media or tags:
            for i, block in enumerate(blocks.tolist()):
                same[i] &= self.media.get(block) == tags.get(start + i)
        return len(blocks) if same.all() else int(np.argmin(same))

    def _same(self, blocks: Index, tokens: Int32, parents: Int64) -> Bool:
        """bool [n]: published with these tokens and these predecessors."""
        equal = self.tokens.take(blocks, axis=0) == tokens
        same: Bool = (self.parent.take(blocks) == parents) & (self.key.take(blocks) != 0)
        # The reduction over short rows is slow, so it is done only if something differs.
        return same if equal.all() else same & equal.all(axis=1)

    def identity(self, block: int) -> int:
        """Generation and number of a block."""
        return int(self.generation[block]) << 32 | block

    def identities(self, blocks: Index) -> Int64:
        """The same for many blocks."""
        return self.generation.take(blocks).astype(np.int64) << 32 | blocks

    def _parents(self, blocks: Index, first: int) -> Int64:
        """Predecessors of consecutive blocks, of which the first one follows `first`."""
        parents = np.empty(len(blocks), np.int64)
        parents[0] = first
        parents[1:] = self.identities(blocks[:-1])
        return parents

    def _alive(self, identities: Int64) -> Bool:
        """bool [n]: these are roots, or blocks that have not lost their contents since."""
        blocks = identities & _BLOCK
        known = identities < 0
        blocks[known] = 0
        alive: Bool = known | (self.identities(blocks) == identities)
        return alive

    # ------------------------------------------------------------ chains of sequences

    def grow(self, rows: int) -> None:
        """Room for this many table rows."""
        if rows > len(self.due):
            for name in self._chain:
                old = getattr(self, name)
                setattr(self, name, np.concatenate((old, np.zeros(rows - len(old), old.dtype))))

    def begin(self, row: int, domain: Domain, media: tuple[Media, ...], hit: Hit) -> None:
        """Start the chain of a new sequence behind its hit."""
        root = self.root[row] = self.domains.join(domain)
        if media:
            self.row_media[row] = media
        self.due[row] = (len(hit.blocks) + 1) * self.block_size
        self.state[row] = hit.state
        self.tip[row] = hit.parent if len(hit.blocks) else root

    def fork(self, parent: int, child: int) -> None:
        """The chain of row `child` starts as a copy of that of row `parent`."""
        for name in self._chain:
            chain = getattr(self, name)
            chain[child] = chain[parent]
        if parent in self.row_media:
            self.row_media[child] = self.row_media[parent]
        self._borrow(child, self.borrowed.get(parent, set()))
        self.domains.use(int(self.root[child]))

    def end(self, row: int) -> None:
        """Forget the chain of a row; what it published stays."""
        self.row_media.pop(row, None)
        self._give_back(row)
        self.domains.leave(self.root.item(row))

    def rewind(self, row: int) -> None:
        """Publish this sequence again from block 0 on; nothing happens to what is published."""
        self._give_back(row)
        if self.due[row] == NEVER:
            return
        root = int(self.root[row])
        self.due[row], self.state[row], self.tip[row] = self.block_size, self.domains.seed(root), root

    def rewind_below(self, row: int, length: int) -> None:
        """After a truncation: the chain must not stand past the new end."""
        if self.due[row] - self.block_size > length:
            self.rewind(row)

    def _borrow(self, row: int, blocks: set[int]) -> None:
        for block in blocks:
            self.borrowed.setdefault(row, set()).add(block)
            self.lenders.setdefault(block, set()).add(row)

    def _give_back(self, row: int) -> None:
        for block in self.borrowed.pop(row, ()):
            self.lenders[block].discard(row)
            if not self.lenders[block]:
                del self.lenders[block]

    def stands(self, row: int) -> bool:
        """Whether the chain of a row can go on: closed for good, or its predecessor has its contents."""
        return self.due[row] == NEVER or bool(self._alive(self.tip[row : row + 1])[0])

    # ------------------------------------------------------------ publishing

    def keep(self, table: Int32, start: int, tokens: Int32) -> None:
        """Record tokens at positions start.. of a sequence with this table."""
        size = self.block_size
        block, offset = divmod(start, size)
        if offset:
            head = tokens[: size - offset]
            self.tokens[table[block], offset : offset + len(head)] = head
            tokens, block = tokens[len(head) :], block + 1
        full, rest = divmod(len(tokens), size)
        if full:
            self.tokens[table[block : block + full]] = tokens[: full * size].reshape(full, size)
        if rest:
            self.tokens[table[block + full], :rest] = tokens[full * size :]

    def publish(self, row: int, table: Int32, full: int) -> list[int]:
        """Publish blocks of this row below `full` that are not yet.

        Returns:
            Blocks that lost their contents to make way; the pool must drop the evictable ones.
        """
        displaced: list[int] = []
        while (start := self.due.item(row) // self.block_size - 1) < full:
            occupant = self._publish_run(row, table[start:full], start)
            if occupant is None:
                break
            if self._alive(self.parent[occupant : occupant + 1])[0]:
                self.due[row] = NEVER  # two histories with one key: the first one keeps it
                break
            self.forget(np.array([occupant], np.int32))
            displaced.append(occupant)
        return displaced

    def _publish_run(self, row: int, blocks: Index, start: int) -> int | None:
        """Publish blocks start.. of a row up to the first whose key belongs to another history.

        Returns:
            The block that stands in the way.
        """
        size = self.block_size
        blocks = blocks.astype(np.intp)  # used as an index several times
        tags = media_tags(self.row_media.get(row, ()), start, start + len(blocks), size)
        tokens = self.tokens.take(blocks, axis=0)
        states = self.hasher.states(tokens, start, self.state.item(row), tags)
        keys = self.hasher.keys(states)
        mine = blocks.tolist()
        owners = list(map(self.map.setdefault, keys.tolist(), mine))
        count, occupant = len(mine), None
        settled = blocks
        if owners != mine:
            settled = np.array(owners)
            parents = self._parents(settled, self.tip.item(row))
            same = self._same(settled, tokens, parents)
            if self.media or tags:
                for i, owner in enumerate(owners):
                    same[i] &= self.media.get(owner) == tags.get(start + i)
            same |= settled == blocks
            if not same.all():
                count = int(np.argmin(same))
                occupant = owners[count]
                self._withdraw_keys(keys[count:].tolist(), mine[count:])
        if count:
            self._record(row, start, blocks[:count], settled[:count], keys[:count], tags)
            self.due[row] = (start + count + 1) * size
            self.state[row] = states[count - 1]
            self.tip[row] = self.identity(int(settled[count - 1]))
            if owners != mine:
                self._borrow(row, {o for o, m in zip(owners[:count], mine, strict=False) if o != m})
        return occupant

    def _record(
        self, row: int, start: int, blocks: Index, settled: Index, keys: Int64, tags: dict[int, Tag]
    ) -> None:
        """Give identities to those of `blocks` that were settled on themselves."""
        parents = self._parents(settled, self.tip.item(row))
        if not start and settled[0] == blocks[0] and not self.key[blocks[0]]:
            self.domains.use(self.root.item(row))
        own = settled == blocks
        for i, tag in tags.items():
            if i - start < len(blocks) and own[i - start]:
                self.media[int(blocks[i - start])] = tag
        if np.count_nonzero(own) < len(own):
            blocks, keys, parents = blocks[own], keys[own], parents[own]
        # A block that was published before gets a live predecessor again: its history is in the table.
        self.key[blocks] = keys
        self.parent[blocks] = parents

    def _withdraw_keys(self, keys: list[int], blocks: list[int]) -> None:
        """Take back the entries that these unpublished blocks have just got."""
        for key, block in zip(keys, blocks, strict=True):
            if self.map.get(key) == block and not self.key[block]:
                del self.map[key]

    def publish_each(self, rows: Index, matrix: Int32, lengths: Int32) -> list[int]:
        """A decode step: publish what has become full in each of these rows of the table matrix.

        Each row usually has exactly one new block with a key of its own; then this is one pass over
        all rows. Otherwise each row is published by itself. Returns what `publish` does.
        """
        full = lengths // self.block_size
        due = self.due[rows]
        tips = self.tip[rows]
        index = full - 1
        if int((lengths - due).max()) >= self.block_size or (self.row_media and self._in_media(rows, index)):
            return self._publish_apart(rows, matrix, full)
        blocks = matrix[rows, index]
        tokens = self.tokens.take(blocks, axis=0)
        states = self.hasher.extend(self.state[rows], tokens, index, matrix.shape[1])
        keys = self.hasher.keys(states)
        mine, names = blocks.tolist(), keys.tolist()
        if list(map(self.map.setdefault, names, mine)) != mine:
            self._withdraw_keys(names, mine)
            return self._publish_apart(rows, matrix, full)
        if np.count_nonzero(index) < len(index):
            first = (index == 0) & (self.key.take(blocks) == 0)
            # Once a block, though forks may both have it.
            for root in dict(zip(blocks[first].tolist(), tips[first].tolist(), strict=True)).values():
                self.domains.use(root)
        self.key[blocks] = keys
        self.parent[blocks] = tips
        self.state[rows] = states
        self.tip[rows] = self.identities(blocks)
        self.due[rows] = due + self.block_size
        return []

    def _in_media(self, rows: Index, index: Int32) -> bool:
        """Whether a media item reaches into or past logical block index[k] of row rows[k]."""
        return any(
            item.offset + item.length > block * self.block_size
            for row, block in zip(rows.tolist(), index.tolist(), strict=True)
            for item in self.row_media.get(row, ())
        )

    def _publish_apart(self, rows: Index, matrix: Int32, full: Int32) -> list[int]:
        displaced: list[int] = []
        for row, count in zip(rows.tolist(), full.tolist(), strict=True):
            displaced += self.publish(row, matrix[row], count)
        return displaced

    # ------------------------------------------------------------ forgetting

    def forget(self, blocks: Index) -> None:
        """These published blocks lose their contents: both directions of the map, and their identity."""
        blocks = blocks.astype(np.intp)  # used as an index several times
        for key in self.key[blocks].tolist():
            del self.map[key]
        parents = self.parent[blocks]
        for root in parents[parents < 0].tolist():
            self.domains.leave(root)
        if self.media:
            for block in blocks.tolist():
                self.media.pop(block, None)
        self.key[blocks] = 0
        self.parent[blocks] = _UNSET
        self.generation[blocks] = self.generation[blocks] + 1 & _GENERATION
        if self.lenders:
            for block in blocks.tolist():
                for row in list(self.lenders.get(block, ())):
                    self.rewind(row)

    def forget_all(self) -> None:
        """Nothing can be matched any more; what runs now publishes nothing more either."""
        self.forget(np.flatnonzero(self.key).astype(np.int32))
        self.due[:] = NEVER

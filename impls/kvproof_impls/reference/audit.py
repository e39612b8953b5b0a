"""Count everything again from scratch: what the state must satisfy after every operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .arrays import Int64
from .tables import PAD

if TYPE_CHECKING:
    from .manager import Manager


def broken(manager: Manager) -> list[str]:
    """One line for each invariant that does not hold."""
    return [*_partition(manager), *_owners(manager), *_rows(manager), *_map(manager), *_host(manager)]


def _partition(manager: Manager) -> list[str]:
    """Every block is held, evictable, free or reserved, and only one of them."""
    pool, lines = manager.pool, []
    stacked, queued, unused = pool.stacked().tolist(), pool.queued().tolist(), list(pool.unused())
    held = np.flatnonzero(pool.state > 0).tolist()
    everything = sorted([*stacked, *queued, *unused, *held, *manager.reserved])
    if everything != list(range(len(pool.state))):
        lines.append("free, evictable, held and reserved blocks are not a partition of the pool")
    if np.any(pool.state[stacked + unused + list(manager.reserved)] != 0):
        lines.append("a free or reserved block has owners")
    if len(queued) != pool.evictable:
        lines.append(f"{pool.evictable} evictable blocks counted, {len(queued)} in the queue")
    return lines


def _owners(manager: Manager) -> list[str]:
    """Owners are the table entries and the raw references, no more and no fewer."""
    counted: Int64 = np.zeros(len(manager.pool.state), np.int64)
    for row in manager.tables.row_of.values():
        np.add.at(counted, manager.tables.blocks(row), 1)
    for block, count in manager.raw.references.items():
        counted[block] += count
    wrong = np.flatnonzero(counted != np.maximum(manager.pool.state, 0)).tolist()
    return [f"block {b}: {counted[b]} owners found, state {manager.pool.state[b]}" for b in wrong]


def _rows(manager: Manager) -> list[str]:
    """Rows are as long as their tokens need, distinct inside, padded behind; free rows are empty."""
    tables, lines = manager.tables, []
    inside = np.arange(tables.matrix.shape[1]) < tables.num_blocks[:, None]
    if np.any((tables.matrix == PAD) == inside):
        lines.append("padding and entries of the table matrix are mixed up")
    live = set(tables.row_of.values())
    if any(tables.num_blocks[row] for row in range(len(tables.matrix)) if row not in live):
        lines.append("a row without a sequence is not empty")
    for seq, row in tables.row_of.items():
        length, blocks = tables.seq_lens.item(row), tables.blocks(row).tolist()
        if len(blocks) != (0 if row in tables.away else tables.blocks_of(length)):
            lines.append(f"sequence {seq}: {len(blocks)} blocks for {length} tokens")
            continue
        if len(set(blocks)) != len(blocks):
            lines.append(f"sequence {seq}: a block is listed twice")
        if not 0 <= tables.computed[row] <= length:
            lines.append(f"sequence {seq}: {tables.computed[row]} of {length} tokens computed")
        if blocks and tables.last_slot[row] != tables.slots(row, length - 1, length)[0]:
            lines.append(f"sequence {seq}: last slot {tables.last_slot[row]}")
        open_blocks = tables.matrix[row, tables.computed[row] // tables.block_size : len(blocks)]
        if not tables.shared[row] and np.any(manager.pool.state[open_blocks] != 1):
            lines.append(f"sequence {seq}: a block that will be written has other owners")
        if not tables.shared[row] and manager.prefix and np.any(manager.prefix.key[open_blocks]):
            lines.append(f"sequence {seq}: a block that will be written is published")
    return lines


def _map(manager: Manager) -> list[str]:
    """The map and the keys of blocks mirror each other; what can be evicted is published."""
    if not manager.prefix:
        return ["blocks are evictable without a prefix cache"] if manager.pool.evictable else []
    prefix, lines = manager.prefix, []
    published = np.flatnonzero(prefix.key).tolist()
    if {block: key for key, block in prefix.map.items()} != {b: prefix.key.item(b) for b in published}:
        lines.append("the map and the keys of the blocks differ")
    if np.any(prefix.key[manager.pool.queued()] == 0):
        lines.append("an evictable block is not published")
    if np.any(manager.pool.state[published] == 0):
        lines.append("a free block is published")
    if not set(prefix.media) <= set(published):
        lines.append("media are recorded for a block that is not published")
    for seq, row in manager.tables.row_of.items():
        if not prefix.stands(row):
            lines.append(f"sequence {seq}: its chain stands on a block that lost its contents")
    pairs = {(row, block) for row, blocks in prefix.borrowed.items() for block in blocks}
    if pairs != {(row, block) for block, rows in prefix.lenders.items() for row in rows}:
        lines.append("lenders and borrowers differ")
    if not {block for _, block in pairs} <= set(published):
        lines.append("a lender is not published")
    users: dict[int, int] = {}
    roots = [*prefix.parent[published].tolist(), *prefix.root[list(manager.tables.row_of.values())].tolist()]
    for root in roots:
        if root < 0:
            users[root] = users.get(root, 0) + 1
    if users != prefix.domains.users:
        lines.append(f"users of domains: {users} found, {prefix.domains.users} counted")
    return lines


def _host(manager: Manager) -> list[str]:
    """The host tier holds exactly the blocks of swapped-out sequences."""
    if not manager.host:
        return ["sequences are away without a host tier"] if manager.tables.away else []
    if manager.host.parked.keys() != manager.tables.away:
        return ["the rows that are away are not those in the host tier"]
    blocks = sorted(b for parked in manager.host.parked.values() for b in parked.blocks.tolist())
    held = np.flatnonzero(manager.host.pool.state).tolist()
    return [] if blocks == held else [f"host blocks {blocks} found, {held} held"]

"""The operations on sequences. Each call looks first and acts then, so an error changes nothing.

(The chapter's allocator keeps the blocks it got when it runs out half-way, and derives the token
count from the table, section 3.2.1; here tokens are counted on their own.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvproof.contract import BadInput, Block, ContractError, Policy, Refused

from . import sizing, wire
from .arrays import Int32, Int64
from .audit import broken
from .host import HostTier
from .inputs import ID_LIMIT, parse_keys, token_array, whole
from .plans import Plans
from .pool import Pool
from .prefix import PrefixCache
from .raw import RawBlocks
from .storage import Storage
from .tables import PAD, Moves, Tables, pick

# fmt: off
ALWAYS = frozenset((
    "probe", "fork", "copies", "refcount", "multi", "defer", "truncate", "swap", "batch", "csr", "slots",
    "steps", "blocks", "data", "selfcheck", "codec", "sizing", "memory",
))
# fmt: on
WITH_PREFIX = frozenset(("prefix", "keys", "stable_keys", "reset", "wire"))


class Manager:
    """A block manager over blocks reserved..num_blocks-1, as `kvproof.contract.Manager` describes it.

    Without `caching` no token is ever read and nothing is matched: a token is a count.
    """

    pool_type = Pool
    tables_type = Tables
    prefix_type = PrefixCache
    host_type = HostTier

    policy: Policy = {"evict": "lru-tail", "watermark": 0, "reserves": "prompt"}  # noqa: RUF012
    guard: str | int = "tokens"
    pad = PAD

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True, reserved: int = 0) -> None:
        whole(num_blocks, "num_blocks", reserved + 1, 2**31 - 1)
        whole(block_size, "block_size", 1, 2**20)
        self.capabilities = ALWAYS | WITH_PREFIX if caching else ALWAYS
        self.reserved = frozenset(range(reserved))
        self.block_size = block_size
        self.prefix = self.prefix_type(num_blocks, block_size) if caching else None
        self.pool = self.pool_type(num_blocks, reserved, self._forget)
        self.tables = self.tables_type(block_size)
        self.host: HostTier | None = None
        self.storage = Storage(num_blocks, block_size)
        self.raw = RawBlocks(self.pool)
        self.plans = Plans(self.pool, self.tables, self.prefix)
        self._copies: list[tuple[Block, Block]] = []

    # ------------------------------------------------------------ sequences

    def add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        """Start a sequence; returns how many tokens are cached already."""
        seq, values, length, hit = self.plans.add(seq, tokens, keys)
        total = self.tables.blocks_of(length)
        self.pool.retain(hit.blocks)  # before others are evicted for the rest
        row = self._new_row(seq)
        self.tables.grow(row, hit.blocks)
        self.tables.grow(row, self.pool.take(total - len(hit.blocks)))
        self.tables.set_length(row, length)
        cached = len(hit.blocks) * self.block_size
        self.tables.computed[row] = cached
        if self.prefix and values is not None:
            self.prefix.begin(row, *parse_keys(keys), hit)
            self.prefix.keep(self.tables.matrix[row], cached, values[cached:])
        return cached

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Reserve slots for more tokens, copying what others would see changed."""
        row, values, count, moves = self.plans.append(seq, tokens)
        length = self.tables.seq_lens.item(row)
        more = self.tables.blocks_of(length + count) - self.tables.num_blocks.item(row)
        if self.tables.shared[row]:
            self._make_own([row], moves, self.pool.take(len(moves)))
        if more:
            self.tables.grow(row, self.pool.take(more))
        self.tables.set_length(row, length + count)
        if self.prefix and values is not None:
            self.prefix.keep(self.tables.matrix[row], length, values)

    def append_batch(self, seqs: Sequence[int], tokens: Sequence[int]) -> Int64:
        """A decode step: one token for each sequence; returns their slots, int64 [n]."""
        rows, count = self.tables.rows(seqs), len(seqs)
        if len(tokens) != count:
            raise BadInput(f"{len(tokens)} tokens for {count} sequences")
        if not count:
            return np.empty(0, np.int64)
        values = token_array(tokens) if self.prefix else None
        tables = self.tables
        full = np.flatnonzero(tables.seq_lens[rows] % self.block_size == 0)
        shared = tables.shared[rows]
        doubtful = pick(rows, np.flatnonzero(shared)).tolist() if np.count_nonzero(shared) else []
        moves = self.tables.moves(doubtful, self.pool.state)
        if len(full) + len(moves) > self.pool.available:
            longest = int(tables.num_blocks[pick(rows, full)].max(initial=0))
            self.plans.short(len(full) + len(moves), longest + 1)
        if doubtful:
            self._make_own(doubtful, moves, self.pool.take(len(moves)))
        slots = tables.last_slot[rows] + 1
        if len(full):
            blocks = self.pool.take(len(full))
            tables.grow_each(pick(rows, full), blocks)
            slots[full] = blocks.astype(np.int64) * self.block_size
        tables.last_slot[rows] = slots
        tables.seq_lens[rows] += 1
        if self.prefix and values is not None:
            self.prefix.tokens.reshape(-1)[slots] = values
        return slots

    def commit(self, seq: int, computed: int) -> None:
        """The KV of positions below `computed` is written; full blocks below it are published."""
        row = self.tables.live_row(seq)
        low, high = self.tables.computed.item(row), self.tables.seq_lens.item(row)
        self.tables.computed[row] = whole(computed, f"computed length of sequence {seq}", low, high)
        if self.prefix and computed >= self.prefix.due[row]:
            full = computed // self.block_size
            self._drop(self.prefix.publish(row, self.tables.matrix[row], full))

    def commit_batch(self, seqs: Sequence[int]) -> None:
        """Every position of these sequences is written."""
        rows = self.tables.rows(seqs)
        lengths = self.tables.seq_lens[rows]
        self.tables.computed[rows] = lengths
        if self.prefix:
            due = np.flatnonzero(lengths >= self.prefix.due[rows])
            if len(due):
                found = pick(rows, due)
                self._drop(self.prefix.publish_each(found, self.tables.matrix, lengths[due]))

    def free(self, seq: int) -> None:
        """End a sequence in any state; its tail becomes evictable before its head."""
        row = self.tables.row(seq)
        if row in self.tables.away:
            self._host().leave(row)
        self._release(self.tables.blocks(row)[::-1])
        if self.prefix:
            self.prefix.end(row)
        self.tables.remove(seq)

    def fork(self, parent: int, child: int) -> None:
        """Start `child` as a copy of `parent` that shares all blocks, a partial tail too."""
        row = self.tables.live_row(parent)
        self.tables.new_id(child)
        other = self._new_row(child)
        tables = self.tables
        self.pool.retain(tables.blocks(row))
        tables.grow(other, tables.blocks(row))
        tables.set_length(other, tables.seq_lens.item(row))
        tables.computed[other] = tables.computed[row]
        self.tables.doubt(row)
        self.tables.doubt(other)
        if self.prefix:
            self.prefix.fork(row, other)

    def truncate(self, seq: int, length: int) -> None:
        """Drop positions from `length` on; whole blocks behind it are released."""
        row = self.tables.live_row(seq)
        tables = self.tables
        whole(length, f"new length of sequence {seq}", 1, tables.seq_lens.item(row))
        keep = tables.blocks_of(length)
        self._release(tables.blocks(row)[keep:][::-1])
        tables.shrink(row, keep)
        tables.set_length(row, length)
        tables.computed[row] = min(tables.computed.item(row), length)
        self.tables.doubt(row)
        if self.prefix:
            self.prefix.rewind_below(row, length)

    # ------------------------------------------------------------ copy-on-write

    def _make_own(self, rows: Sequence[int], moves: Moves, blocks: Int32) -> None:
        """Afterwards every open block of these rows has one owner and no published contents."""
        tables = self.tables
        for (row, index), target in zip(moves, blocks.tolist(), strict=True):
            self._copy_on_write(row, index, target)
        for row in rows:
            if self.prefix:
                own = [tables.matrix.item(row, index) for index in self.tables.open(row)]
                known = [block for block in own if self.prefix.key[block]]
                if known:  # cut short by truncate, and about to be written differently
                    self.prefix.forget(np.array(known, np.int32))
            tables.set_length(row, tables.seq_lens.item(row))
            tables.shared[row] = False

    def _copy_on_write(self, row: int, index: int, target: int) -> None:
        source = self.tables.matrix.item(row, index)
        self.tables.matrix[row, index] = target
        self.pool.state[source] -= 1
        if self.prefix:
            self.prefix.tokens[target] = self.prefix.tokens[source]
        self._copied([(source, target)])

    def _copied(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        self._copies += pairs
        self.storage.copy(pairs)

    def copies(self) -> list[tuple[Block, Block]]:
        """(source, target) of every block copy since the last call, in order."""
        done, self._copies = self._copies, []
        return done

    # ------------------------------------------------------------ swap

    def swap_out(self, seq: int) -> None:
        """Move a sequence to the host tier; its device blocks are released."""
        row = self.tables.live_row(seq)
        blocks = self.tables.blocks(row).copy()
        tokens = self.prefix.tokens.take(blocks, axis=0) if self.prefix else None
        parked = self._host().park(row, len(blocks), tokens)
        self._copied([(b, ("host", h)) for b, h in zip(blocks.tolist(), parked.tolist(), strict=True)])
        self._release(blocks[::-1])
        self.tables.leave(row)
        if self.prefix:
            self.prefix.rewind(row)  # the blocks it comes back to are not published

    def swap_in(self, seq: int) -> None:
        """Bring a sequence back into blocks of its own."""
        row = self.tables.row(seq)
        if row not in self.tables.away:
            raise Refused(f"sequence {seq} is not swapped out")
        blocks = self.pool.take(self._host().count(row))
        parked = self._host().leave(row)
        self.tables.come_back(row, blocks)
        if self.prefix:
            assert parked.tokens is not None
            self.prefix.tokens[blocks] = parked.tokens
        pairs = zip(parked.blocks.tolist(), blocks.tolist(), strict=True)
        self._copied([(("host", h), b) for h, b in pairs])

    def _host(self) -> HostTier:
        if not self.host:
            self.host = self.host_type(len(self.pool.state))
        return self.host

    # ------------------------------------------------------------ blocks

    def _release(self, blocks: Int32) -> None:
        """Drop one owner of each; what nobody owns becomes evictable if it is published, else free."""
        gone = self.pool.release(blocks.astype(np.intp))  # an index of this type is twice as fast
        if not self.prefix:
            self.pool.push(gone)
            return
        keys = self.prefix.key[gone]
        found = keys.nonzero()[0]
        loose = len(gone) - len(found)
        if loose:
            if len(found) and found[0] < loose:  # usually only the tail is not published
                gone = np.concatenate((gone[keys == 0], gone[found]))
            self.pool.push(gone[:loose])
            gone = gone[loose:]
        self.pool.queue(gone)

    def _forget(self, blocks: Int32) -> None:
        """Evicted blocks lose their identity before they are used again."""
        if self.prefix:
            self.prefix.forget(blocks)

    def _drop(self, blocks: Sequence[int]) -> None:
        """Blocks that lost their contents to make way for others need not wait for eviction."""
        if blocks:
            self.pool.drop(blocks)

    def free_blocks(self) -> int:
        """Free and evictable blocks."""
        return self.pool.available

    def refcount(self, block: int) -> int:
        """Owners of a block: sequences, and references through `alloc` and `retain`."""
        return max(0, self.pool.state.item(self._block(block)))

    def _block(self, block: Any) -> int:
        return whole(block, "block", 0, len(self.pool.state) - 1)

    def alloc(self) -> int:
        """Take a raw block with one reference."""
        return self.raw.alloc()

    def retain(self, block: int) -> None:
        """One more raw reference to a block that is held."""
        self.raw.retain(self._block(block))
        self.tables.doubt_all()  # whoever has the block must copy it now

    def release(self, block: int) -> None:
        """Drop a raw reference."""
        self.release_many([block])

    def release_many(self, blocks: Sequence[int]) -> None:
        """Drop one raw reference for each entry, all or nothing."""
        self._release(self.raw.release([self._block(block) for block in blocks]))

    # ------------------------------------------------------------ questions

    def can_add(self, seq: int, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> bool:
        """True exactly when `add` would succeed now."""
        try:
            self.plans.add(seq, tokens, keys)
        except ContractError:
            return False
        return True

    def can_append(self, seq: int, n: int = 1) -> bool:
        """True exactly when `append` of n tokens would succeed now."""
        try:
            self.plans.growth(self.tables.live_row(seq), whole(n, "token count", 1, ID_LIMIT))
        except ContractError:
            return False
        return True

    def blocks_to_add(self, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        """By how much an `add` would lower `free_blocks`: new blocks, and matched ones that nobody holds."""
        _, length, hit = self.plans.find(tokens, keys)
        return self.plans.taken(length, hit)

    def match(self, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> int:
        """Tokens that `add` would find in the cache."""
        hit = self._cache().match(token_array(tokens), *parse_keys(keys))
        return len(hit.blocks) * self.block_size

    def block_keys(self, tokens: Sequence[int], keys: Mapping[str, Any] | None = None) -> list[bytes]:
        """The key of each full block, 8 bytes, the same in every process."""
        return self._cache().block_keys(token_array(tokens), *parse_keys(keys))

    def reset_prefix_cache(self) -> bool:
        """Forget all contents; running sequences go on and publish nothing more."""
        self._cache().forget_all()
        self.pool.drop(self.pool.queued().tolist())
        return True

    def _cache(self) -> PrefixCache:
        if not self.prefix:
            raise Refused("prefix caching is off")
        return self.prefix

    def table(self, seq: int) -> list[int]:
        """The block table, a fresh list; empty while swapped out."""
        blocks: list[int] = self.tables.blocks(self.tables.row(seq)).tolist()
        return blocks

    def slots(self, seq: int, lo: int, hi: int) -> list[int]:
        """Slots of positions lo..hi-1."""
        row = self.tables.live_row(seq)
        high = whole(hi, "end of slots", 0, self.tables.seq_lens.item(row))
        slots: list[int] = self.tables.slots(row, whole(lo, "start of slots", 0, high), high).tolist()
        return slots

    def batch(self, seqs: Sequence[int]) -> tuple[Int32, Int32, Int32]:
        """(block tables [n, widest], block counts [n], token counts [n]); views if they can be."""
        return self.tables.batch(self.tables.rows(seqs, repeats=True))

    def csr(self, seqs: Sequence[int]) -> tuple[Int32, Int32, Int32]:
        """(indptr [n + 1], indices, tokens in the last block [n])."""
        return self.tables.ragged(self.tables.rows(seqs, repeats=True))

    def table_bytes(self) -> int:
        """Bytes of the block tables with their padding and counts."""
        return self.tables.nbytes()

    def blocks_for(
        self,
        memory: int,
        share: float,
        reserved: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype_bytes: int,
    ) -> int:
        """Blocks of this block size that fit into `share` of `memory` bytes less `reserved`."""
        size = sizing.block_bytes(self.block_size, layers, kv_heads, head_dim, dtype_bytes)
        return sizing.blocks_for(memory, share, reserved, size)

    # ------------------------------------------------------------ workers

    def encode_tables(self, seqs: Sequence[int]) -> bytes:
        """Lengths and tables of these sequences for a worker."""
        rows = [(seq, self.tables.row(seq)) for seq in seqs]
        lengths = self.tables.seq_lens
        return wire.encode_tables([(s, lengths.item(r), self.tables.blocks(r)) for s, r in rows])

    def decode_tables(self, data: bytes) -> list[tuple[int, int, list[int]]]:
        """(seq, tokens, table) for each row; BadInput for anything but an intact message."""
        return wire.decode_tables(data)

    def wire(self, seq: int) -> list[int]:
        """Tokens that a worker computes next, after encode and decode."""
        row = self.tables.row(seq)
        start, stop = self.tables.computed.item(row), self.tables.seq_lens.item(row)
        if row in self.tables.away:
            tokens = self._host().token_at(row, range(start, stop))
        else:
            tokens = self._cache().tokens.reshape(-1).take(self.tables.slots(row, start, stop)).tolist()
        return wire.decode_tokens(wire.encode_tokens(seq, start, tokens))[2]

    def write(self, block: int, offset: int, x: float) -> None:
        """Put x into a slot of the storage."""
        self.storage.write(block, offset, x)

    def read(self, block: int, offset: int) -> float:
        """What a slot of the storage holds."""
        return self.storage.read(block, offset)

    def selfcheck(self) -> list[str]:
        """Everything counted again from scratch: one line for each invariant that is broken."""
        return broken(self)

    def _new_row(self, seq: int) -> int:
        row = self.tables.add(seq)
        if self.prefix:
            self.prefix.grow(len(self.tables.matrix))
        return row

"""Managers: who owns which block of the KV cache. Six members; the rest is behind capabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict, runtime_checkable

Block = int | tuple[str, int]
"""A block id; `("host", i)` is block i of the host tier (capability `swap`)."""


class Keys(TypedDict, total=False):
    """What besides tokens decides the KV of a sequence (capability `keys`).

    salt, adapter: for the whole sequence; absent is not the same as "".
    media: (offset, length, id) in tokens; the item counts from the block of its offset on.
    """

    salt: str
    adapter: str
    media: Sequence[tuple[int, int, str]]


class Policy(TypedDict, total=False):
    """What an implementation promises beyond safety; what it leaves out is UNSUPPORTED."""

    order: str  # "fcfs" | "priority" | "none"
    overtake: int
    max_preemptions: int
    evict: str  # "lru-tail" | "lru" | "fifo" | "other"
    watermark: int  # blocks kept back at admission
    reserves: str  # "prompt" | "all"


def wrong_policy(policy: Mapping[str, object]) -> str:
    """What is wrong with a declared policy, and what is allowed; "" if nothing."""
    allowed = list(Policy.__annotations__)
    unknown = [name for name in policy if name not in allowed]
    return f"policy has {unknown[0]!r}, which is not known; allowed: {', '.join(allowed)}" if unknown else ""


@runtime_checkable
class Manager(Protocol):
    """A block manager: who owns which block of the KV cache.

    Made by a factory `make(num_blocks, block_size)`. Capacity is num_blocks less the reserved
    ids; ids need not be 0..num_blocks-1.
    """

    capabilities: frozenset[str]
    """Names from `specs/capabilities.toml`."""

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        """Start sequence `seq` with `tokens` and take blocks for all of them, matched ones first.

        Args:
            seq: a new id, not negative.
            tokens: at least one int.

        Returns:
            n, 0 <= n < len(tokens): the KV of the first n tokens is in the cache and can be
            read now. 0 without `prefix`; a multiple of the block size without `partial`.

        Raises:
            OutOfBlocks, Refused, BadInput.
        """
        ...

    def append(self, seq: int, tokens: Sequence[int]) -> None:
        """Reserve slots for `tokens` behind the last one; nothing is computed yet.

        One token, or several with `multi`, all or nothing. Afterwards every position has a
        block, and every block at or past the computed length has one owner; with `copies`,
        `copies()` says what moved for that (copy-on-write).

        Raises:
            OutOfBlocks, Refused, UnknownSequence, BadInput.
        """
        ...

    def commit(self, seq: int, computed: int) -> None:
        """The KV of positions < computed is now written.

        Absolute, counts cached tokens, never falls: n <= computed <= length. Called after every
        add and append; later only with `defer`. Full blocks below it may be published to the
        prefix cache from here on, generated tokens too, and never before.
        """
        ...

    def free(self, seq: int) -> None:
        """End the sequence and drop what it owns, in whatever state it is.

        Publishes nothing that was not committed; published blocks stay matchable until they are
        evicted. Unknown id: UnknownSequence or nothing.
        """
        ...

    def table(self, seq: int) -> Sequence[int]:
        """The block table: ceil(length / block_size) ids in logical order, a fresh sequence.

        With `lookahead` up to that many more. Unknown id: UnknownSequence.
        """
        ...

    def free_blocks(self) -> int:
        """Blocks a new sequence could take: free and evictable, less reserved and watermark."""
        ...


class ManagerOptions(Protocol):
    """Members behind the capabilities; a subject has those that it names.

    Attributes, each optional:
        reserved: ids never handed out. Default: none.
        lookahead: blocks a table may hold beyond its length. Default 0.
        lazy: the table may lag between ceil(computed / block_size) and the full length until
            the commit. Default False.
        pad: what fills the rows of `batch` (`batch`). Default -1.
        window: positions >= length - window are kept; dropped entries read -1 (`window`).
        policy: see Policy.
        guard: what a hit is sure of (`prefix`): "tokens" if it compares the tokens of every block and the
            identity of the block before it, else the bits of the hash relied on: 64 where the block's
            own tokens are compared and a chained 64-bit hash stands for those before it.
        publish: "commit" (default) or "free": when blocks become matchable (`prefix`).
    """

    # prefix
    def match(self, tokens: Sequence[int], keys: Keys | None = None) -> int:
        """Tokens that `add` would find in the cache; changes nothing. Optional with `prefix`."""
        ...

    # stable_keys
    def block_keys(self, tokens: Sequence[int], keys: Keys | None = None) -> list[bytes]:
        """One key for each full block, the same bytes in every process and run."""
        ...

    # probe
    def can_add(self, seq: int, tokens: Sequence[int]) -> bool:
        """True exactly when `add` would succeed now."""
        ...

    def can_append(self, seq: int, n: int = 1) -> bool:
        """True exactly when `append` of n tokens would succeed now."""
        ...

    # fork
    def fork(self, parent: int, child: int) -> None:
        """Start `child` with the parent's tokens and computed length, sharing its blocks.

        An eager copy of a partial tail is allowed if it is in `copies()`.
        """
        ...

    # copies
    def copies(self) -> list[tuple[Block, Block]]:
        """(source, target) of every block copy since the last call, in order.

        They are replayed in that order before the step's writes; one left out is a failure.
        Without this capability an entry that changes under computed positions counts as a copy
        of the whole block, all sources read before any target is written.
        """
        ...

    # refcount
    def refcount(self, block: int) -> int:
        """Owners of the block among live sequences; cache pins are not counted."""
        ...

    # truncate
    def truncate(self, seq: int, length: int) -> None:
        """Drop positions >= length (0 < length); a block that others share stays theirs."""
        ...

    # swap
    def swap_out(self, seq: int) -> None:
        """Move the sequence to the host tier; its table is empty, append is Refused, free legal."""
        ...

    def swap_in(self, seq: int) -> None:
        """Bring it back; contents and order are as before."""
        ...

    # batch
    def batch(self, seqs: Sequence[int]) -> tuple[Any, Any, Any]:
        """(block_table [n, widest] int32, num_blocks [n], seq_lens [n] in tokens).

        Row i is the table of seqs[i], padded with `pad`. Any order, any subset, repeats.
        Valid until the next call: it may be a view. Empty input gives empty arrays.
        """
        ...

    # csr
    def csr(self, seqs: Sequence[int]) -> tuple[Any, Any, Any]:
        """The ragged form: indptr [n + 1], indices, last_block_len [n] (1..block_size)."""
        ...

    # slots
    def slots(self, seq: int, lo: int, hi: int) -> Sequence[int]:
        """block * block_size + offset for positions lo..hi-1; a position with no block is an error."""
        ...

    # steps
    def append_batch(self, seqs: Sequence[int], tokens: Sequence[int]) -> Sequence[int]:
        """One token for each sequence, all or nothing; returns their slots. Duplicates: BadInput."""
        ...

    def commit_batch(self, seqs: Sequence[int]) -> None:
        """Every position of these sequences is written: a decode step's commit. Optional."""
        ...

    # blocks: the raw pool
    def alloc(self) -> int:
        """Take a block with one reference."""
        ...

    def retain(self, block: int) -> None:
        """Add a reference; a free block: BadInput."""
        ...

    def release(self, block: int) -> None:
        """Drop a reference; the last one frees the block. A free block: BadInput, or nothing."""
        ...

    def release_many(self, blocks: Sequence[int]) -> None:
        """One release for each entry, in one batch; a block may be listed twice. Optional."""
        ...

    # reset
    def reset_prefix_cache(self) -> bool:
        """True and everything is forgotten, or False and nothing has changed."""
        ...

    # data
    def write(self, block: int, offset: int, x: float) -> None:
        """Put x into a slot of the real storage (used instead of the harness's own memory)."""
        ...

    def read(self, block: int, offset: int) -> float:
        """What the slot holds."""
        ...

    # selfcheck
    def selfcheck(self) -> list[str]:
        """The subject's own invariants: one line for each that is broken."""
        ...

    # wire
    def wire(self, seq: int) -> list[int]:
        """Tokens a worker would see for the next step, after the subject's encode and decode.

        They are the tokens at positions computed..length-1.
        """
        ...

    # codec
    def encode_tables(self, seqs: Sequence[int]) -> bytes:
        """Lengths and block tables in a compact form: at most 4 bytes an entry, 32 a row, 64 in all."""
        ...

    def decode_tables(self, data: bytes) -> list[tuple[int, int, list[int]]]:
        """(seq, tokens, table) for each row; damaged or truncated bytes: BadInput."""
        ...

    # sizing
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
        """floor((memory * share - reserved) / bytes a block), memory and reserved in bytes.

        Bytes a block = 2 * layers * block_size * kv_heads * head_dim * dtype_bytes, kv_heads
        counted on one rank. Less than one block: Refused.
        """
        ...

    # memory
    def table_bytes(self) -> int:
        """Bytes that the block tables hold now, padding included."""
        ...

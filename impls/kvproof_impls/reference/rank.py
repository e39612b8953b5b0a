"""One rank: answers the driver's messages. What it does depends on the messages alone, not on how they come.

A message is a head, a body, and a CRC-32 of both, little-endian; a damaged one is as good as lost.

    head     2 bytes "KR", kind, 0, uint32 generation, uint64 serial

The driver sends one request at a time to all ranks and sends it again to those that are silent. A rank
answers a serial that it has answered before in the same words, and nothing below it: so a request that is
repeated, late or out of order does nothing twice. The generation grows whenever the group is formed: what
a former driver sends is not answered.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum

from kvproof.contract import BadInput, ContractError

from .decision import decode
from .replica import Hit, Prepared, Replica

_HEAD = struct.Struct("<2sBBIQ")
_CRC = struct.Struct("<I")
_SIZE = struct.Struct("<I")
_ENTRY = struct.Struct("<16sI")
_PREPARE = struct.Struct("<Q8sI")
_STATE = struct.Struct("<Q8sB8s")
NO_DIGEST = bytes(8)


class Kind(IntEnum):
    """Of a request; its answer has the same kind, or is a refusal."""

    SIZE = 1
    """How many blocks have you? -> uint32"""
    START = 2
    """uint32: the capacity that all ranks have."""
    MATCH = 3
    """Keys and blocks of a hit -> uint32: how many of them you have as well."""
    PREPARE = 4
    """Epoch, digest after, length of the tokens, tokens, tables -> the digest that you would have."""
    COMMIT = 5
    """-> the digest that you have."""
    DROP = 6
    """uint32 each: ranks that are lost. The prepared step has no effect."""
    STATE = 7
    """-> epoch, digest, whether a step is prepared, the digest that it would lead to."""
    SETTLE = 8
    """Epoch and digest of the group: commit what leads there, drop the rest -> whether you are there."""
    REFUSED = 9
    """Answer: why not."""


def pack(kind: int, generation: int, serial: int, body: bytes = b"") -> bytes:
    data = _HEAD.pack(b"KR", kind, 0, generation, serial) + body
    return data + _CRC.pack(zlib.crc32(data))


def unpack(data: bytes) -> tuple[int, int, int, bytes] | None:
    """(kind, generation, serial, body); None for what is no intact message."""
    stop = len(data) - _CRC.size
    if stop < _HEAD.size or zlib.crc32(data[:stop]) != _CRC.unpack_from(data, stop)[0]:
        return None
    name, kind, zero, generation, serial = _HEAD.unpack_from(data)
    return (kind, generation, serial, data[_HEAD.size : stop]) if (name, zero) == (b"KR", 0) else None


def pack_hit(hit: Hit) -> bytes:
    return b"".join(_ENTRY.pack(key, block) for key, block in hit)


def pack_prepare(epoch: int, digest: bytes, tokens: bytes, tables: bytes) -> bytes:
    return _PREPARE.pack(epoch, digest, len(tokens)) + tokens + tables


def pack_size(*values: int) -> bytes:
    return b"".join(map(_SIZE.pack, values))


def unpack_sizes(body: bytes) -> list[int]:
    return [value for (value,) in _SIZE.iter_unpack(body)]


def pack_target(epoch: int, digest: bytes) -> bytes:
    return _STATE.pack(epoch, digest, 0, NO_DIGEST)


def unpack_state(body: bytes) -> tuple[int, bytes, bytes | None]:
    """(epoch, digest, digest of what is prepared)."""
    epoch, digest, prepared, after = _STATE.unpack(body)
    return epoch, digest, after if prepared else None


def message_parts(data: bytes) -> dict[str, int]:
    """Bytes of a message by what they are: frame, head, hit, digest, tokens, tables; in all its length."""
    message = unpack(data)
    if message is None:
        raise BadInput(f"{len(data)} bytes that are no message")
    kind, _, _, body = message
    found = {"frame": len(data) - len(body)}
    if kind == Kind.PREPARE and len(body) >= _PREPARE.size:
        _, digest, tokens = _PREPARE.unpack_from(body)
        found |= {"head": _PREPARE.size - len(digest), "digest": len(digest)}
        return found | {"tokens": tokens, "tables": len(body) - _PREPARE.size - tokens}
    if kind in (Kind.PREPARE, Kind.COMMIT):
        return found | {"digest": len(body)}
    return found | {"hit" if kind == Kind.MATCH else "head": len(body)}


class Rank:
    """Blocks, state, and the step that is prepared.

    own_ids: the rank gives each logical block a number of its own, in the order of first use.
    """

    replica_type = Replica

    def __init__(self, number: int, num_blocks: int, block_size: int, own_ids: bool) -> None:
        self.number, self.num_blocks, self.block_size = number, num_blocks, block_size
        self.own_ids = own_ids
        self.generation = self.serial = 0
        self.answer = b""
        """To the request of this serial."""
        self.replica = self.replica_type(0, block_size)
        self.prepared: Prepared | None = None
        self.lost: set[int] = set()
        self.refusing = False
        self.received: dict[int, tuple[int, Sequence[int]]] = {}
        """Start and tokens that came for the last step of each sequence."""
        self.places: dict[int, int] = {}

    # ------------------------------------------------------------ questions

    def table(self, seq: int) -> list[int]:
        """Own blocks of a sequence."""
        return self.own(self.replica.row(seq).blocks)

    def own(self, blocks: Sequence[int]) -> list[int]:
        """Own numbers of logical blocks."""
        if not self.own_ids:
            return list(blocks)
        # Numbers from the top: nothing may rely on the driver's being the same.
        return [self.places.setdefault(b, self.num_blocks - 1 - len(self.places)) for b in blocks]

    def evict(self, count: int) -> list[int]:
        """Lose the contents of the cached idle blocks that would be evicted last; their own numbers."""
        cached = [b for b in self.replica.idle if b in self.replica.key_of]
        chosen = cached[max(len(cached) - count, 0) :]
        for block in chosen:
            self.replica.forget(block)
        return self.own(chosen)

    # ------------------------------------------------------------ messages

    def handle(self, data: bytes) -> bytes | None:
        """The answer to a message; None for what is damaged, old or of a former group."""
        message = unpack(data)
        if message is None:
            return None
        kind, generation, serial, body = message
        if generation > self.generation and kind in (Kind.SIZE, Kind.STATE):
            self.generation, self.serial, self.lost = generation, 0, set()
        if generation != self.generation or serial < self.serial:
            return None
        if serial > self.serial:
            try:
                self.answer = pack(kind, generation, serial, self._do(kind, body))
            except (ContractError, ValueError, struct.error) as error:
                self.answer = pack(Kind.REFUSED, generation, serial, str(error).encode())
            self.serial = serial
        return self.answer

    def _do(self, kind: int, body: bytes) -> bytes:
        if kind == Kind.PREPARE:
            return self._prepare(body)
        if kind == Kind.COMMIT:
            return self._commit()
        if kind == Kind.DROP:
            self.prepared, self.lost = None, self.lost | set(unpack_sizes(body))
            return b""
        if kind == Kind.MATCH:
            return pack_size(self.replica.holds(list(_ENTRY.iter_unpack(body))))
        if kind == Kind.STATE:
            return self.state()
        if kind == Kind.SETTLE:
            return self._settle(*_STATE.unpack(body)[:2])
        if kind == Kind.SIZE:
            return pack_size(self.num_blocks)
        if kind == Kind.START:
            self.replica = self.replica_type(unpack_sizes(body)[0], self.block_size)
            return b""
        raise BadInput(f"a message of kind {kind}")

    def _prepare(self, body: bytes) -> bytes:
        epoch, digest, size = _PREPARE.unpack_from(body)
        self.prepared = None
        if self.refusing:
            self.refusing = False
            raise BadInput("no memory for this step")
        if epoch != self.replica.epoch:
            raise BadInput(f"a step behind epoch {epoch}, this rank is at {self.replica.epoch}")
        rest = body[_PREPARE.size :]
        prepared = self.replica.prepare(decode(rest[:size], rest[size:], self.replica))
        if prepared.digest == digest:  # else the driver sees the difference
            self.prepared = prepared
        return prepared.digest

    def _commit(self) -> bytes:
        if self.prepared is None:
            raise BadInput("nothing is prepared")
        self.apply(self.prepared)
        return self.replica.digest()

    def apply(self, prepared: Prepared) -> None:
        """The prepared step takes effect."""
        self.replica.commit(prepared)
        self.prepared = None
        for seq in prepared.decision.removed:
            self.received.pop(seq, None)
        for change in prepared.decision.changes:
            if change.tokens:
                self.received[change.seq] = change.start, change.tokens

    def state(self) -> bytes:
        """For `unpack_state`."""
        after = self.prepared.digest if self.prepared else NO_DIGEST
        return _STATE.pack(self.replica.epoch, self.replica.digest(), self.prepared is not None, after)

    def _settle(self, epoch: int, digest: bytes) -> bytes:
        replica, prepared = self.replica, self.prepared
        if prepared and replica.epoch + 1 == epoch and prepared.digest == digest:
            self.apply(prepared)
        self.prepared = None
        return bytes([replica.epoch == epoch and replica.digest() == digest])

    def settle(self, epoch: int, digest: bytes) -> bool:
        """The same on the driver's own rank."""
        return self._settle(epoch, digest) == b"\1"

"""Messages to workers: tables, changes of tables, tokens (chapter 3.2.4, which serialises nothing).

A message is a head, rows, and a CRC-32 of both, all little-endian. Whatever is not exactly such a
message (cut short, longer, changed) is refused with BadInput.

    head     4 bytes "KVP" and the kind, uint16 version, uint16 0, uint32 rows, uint64 step
    table    int64 sequence, int64 tokens, uint32 kind of row, uint32 kept, uint32 entries, int32 each
    tokens   the same with tokens as entries and the start position in place of the count
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kvproof.contract import BadInput

from .arrays import Int32

VERSION = 1
_HEAD = struct.Struct("<4sHHIQ")
_ROW = struct.Struct("<qqIII")
_CRC = struct.Struct("<I")
_TABLES, _DELTA, _TOKENS = b"KVPT", b"KVPD", b"KVPK"

REPLACED, APPENDED, REMOVED = 0, 1, 2
"""What a row of a delta does: set a whole table, keep its first entries and add, end the sequence."""

Table = tuple[int, list[int]]
"""Token count and blocks of a sequence."""

_Row = tuple[int, int, int, int, Int32]


def encode_tables(rows: Iterable[tuple[int, int, Sequence[int] | Int32]]) -> bytes:
    """(seq, tokens, table) of each row: 4 bytes an entry, 28 a row, 24 in all."""
    return _encode(_TABLES, 0, [(seq, n, REPLACED, 0, _entries(table)) for seq, n, table in rows])


def decode_tables(data: bytes) -> list[tuple[int, int, list[int]]]:
    """The inverse of `encode_tables`."""
    rows = _decode(_TABLES, data)[1]
    return [(seq, tokens, entries.tolist()) for seq, tokens, _, _, entries in rows]


def encode_tokens(seq: int, start: int, tokens: Sequence[int]) -> bytes:
    """Tokens of a sequence from position `start` on."""
    return _encode(_TOKENS, 0, [(seq, start, REPLACED, 0, _entries(tokens))])


def decode_tokens(data: bytes) -> tuple[int, int, list[int]]:
    """(seq, start, tokens)."""
    rows = _decode(_TOKENS, data)[1]
    if len(rows) != 1:
        raise BadInput(f"{len(rows)} rows in a message of one sequence")
    seq, start, _, _, entries = rows[0]
    return seq, start, entries.tolist()


def encode_delta(before: Mapping[int, Table], after: Mapping[int, Table], step: int) -> bytes:
    """What turns `before` into `after`: its size grows with what changed.

    `step` counts the messages; the receiver refuses any but the one it waits for.
    """
    rows: list[_Row] = []
    for seq in before.keys() - after.keys():
        rows.append((seq, 0, REMOVED, 0, _entries(())))
    for seq, (tokens, table) in after.items():
        old_tokens, old = before.get(seq, (0, []))
        if seq in before and old == table[: len(old)]:
            if len(old) < len(table) or tokens != old_tokens:
                rows.append((seq, tokens, APPENDED, len(old), _entries(table[len(old) :])))
        elif seq not in before or old != table or tokens != old_tokens:
            rows.append((seq, tokens, REPLACED, 0, _entries(table)))
    return _encode(_DELTA, step, rows)


def decode_delta(before: Mapping[int, Table], data: bytes, step: int) -> dict[int, Table]:
    """The tables after this delta; `before` stays as it is.

    Raises:
        BadInput: damaged, not the delta of this step, or not made for these tables.
    """
    found, rows = _decode(_DELTA, data)
    if found != step:
        raise BadInput(f"delta of step {found}, expected step {step}")
    after = dict(before)
    for seq, tokens, kind, kept, entries in rows:
        if kind == REPLACED:
            after[seq] = tokens, entries.tolist()
        elif kind == REMOVED and seq in after:
            del after[seq]
        elif kind == APPENDED and seq in after and len(after[seq][1]) == kept:
            after[seq] = tokens, after[seq][1] + entries.tolist()
        else:
            raise BadInput(f"delta row of sequence {seq} does not fit the tables it is applied to")
    return after


def _entries(values: Sequence[int] | Int32) -> Int32:
    return np.asarray(values, np.int32)


def _encode(kind: bytes, step: int, rows: Sequence[_Row]) -> bytes:
    parts = [_HEAD.pack(kind, VERSION, 0, len(rows), step)]
    for seq, tokens, change, kept, entries in rows:
        parts.append(_ROW.pack(seq, tokens, change, kept, len(entries)))
        parts.append(entries.astype("<i4", copy=False).tobytes())
    body = b"".join(parts)
    return body + _CRC.pack(zlib.crc32(body))


def _decode(kind: bytes, data: bytes) -> tuple[int, list[_Row]]:
    if not isinstance(data, bytes | bytearray | memoryview):
        raise BadInput(f"a message is bytes, not {type(data).__name__}")
    data = bytes(data)
    stop = len(data) - _CRC.size
    if stop < _HEAD.size or zlib.crc32(data[:stop]) != _CRC.unpack_from(data, stop)[0]:
        raise BadInput(f"message of {len(data)} bytes is cut short or damaged")
    found, version, zero, count, step = _HEAD.unpack_from(data)
    if found != kind or version != VERSION or zero:
        raise BadInput(f"message {found!r} version {version}, expected {kind!r} version {VERSION}")
    rows: list[_Row] = []
    at = _HEAD.size
    for _ in range(count):
        if at + _ROW.size > stop:
            raise BadInput("message ends inside a row")
        seq, tokens, change, kept, size = _ROW.unpack_from(data, at)
        at += _ROW.size
        if at + 4 * size > stop or change > REMOVED or seq < 0 or tokens < 0:
            raise BadInput(f"row of sequence {seq} is not valid")
        entries = np.frombuffer(data, "<i4", size, at).astype(np.int32)
        if size and int(entries.min()) < 0:
            raise BadInput(f"row of sequence {seq} has a negative entry")
        rows.append((seq, tokens, change, kept, entries))
        at += 4 * size
    if at != stop:
        raise BadInput(f"{stop - at} bytes behind the last row")
    return step, rows

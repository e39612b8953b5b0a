"""The inside of the reference, beyond the contract that the suite sees: input, wire, sizing, selfcheck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvproof.contract import BadInput, Refused
from kvproof.selftest.reference_calls import blocks, started
from kvproof_impls.reference import sizing, wire
from kvproof_impls.reference.adapter import make, make_reserved, make_uncached
from kvproof_impls.reference.inputs import token_array

# ---------------------------------------------------------------- input


@pytest.mark.parametrize(
    "tokens", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), np.array([1, 2], np.uint8)]
)
def test_tokens_of_many_types(tokens: Any) -> None:
    found = token_array(tokens)
    assert found.dtype == np.int32
    assert found.tolist() == [1, 2]


def test_int32_tokens_are_not_copied() -> None:
    tokens = np.array([1, 2], np.int32)
    assert np.shares_memory(token_array(tokens), tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [1.5],
        ["a"],
        [None],
        [-1],
        [2**31],
        "ab",
        b"ab",
        7,
        None,
        {1: 2},
        np.array([1.0]),
        np.array([[1]]),
        np.array([-1]),
        np.array([2**40]),
    ],
)
def test_bad_tokens_are_named(tokens: Any) -> None:
    manager = make(4, 4)
    with pytest.raises(BadInput, match="token"):
        manager.add(0, tokens)
    assert manager.free_blocks() == 4


class Unreadable:
    def __index__(self) -> int:
        raise AssertionError("read")


def test_without_caching_no_token_is_read() -> None:
    manager = make_uncached(8, 2)
    tokens: Any = [Unreadable()] * 5
    assert manager.add(0, tokens) == 0
    manager.append(0, tokens[:1])
    manager.append_batch([0], tokens[:1])
    manager.commit_batch([0])
    assert len(manager.table(0)) == 4
    assert not manager.capabilities & {"prefix", "keys", "stable_keys", "reset", "wire"}
    with pytest.raises(Refused):
        manager.reset_prefix_cache()


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (-1, 4), (4.0, 4), ("4", 4)])
def test_bad_pool_sizes(size: Any) -> None:
    with pytest.raises(BadInput):
        make(*size)


def test_block_zero_stays_reserved() -> None:
    manager = make_reserved(4, 2)
    manager.add(0, [1] * 6)
    assert manager.table(0) == [1, 2, 3]
    assert manager.free_blocks() == 0
    with pytest.raises(BadInput):
        make_reserved(1, 2)
    with pytest.raises(BadInput):
        manager.retain(0)


@pytest.mark.parametrize(
    "keys",
    [{"salt": 1}, {"adapter": None}, {"pepper": "x"}, {"media": [(0, 1)]}, {"media": [(-1, 1, "x")]}],
)
def test_bad_keys_are_named(keys: Any) -> None:
    with pytest.raises(BadInput):
        make(4, 4).add(0, [1], keys)


# ---------------------------------------------------------------- wire and sizing


def test_tables_survive_the_wire_and_stay_small() -> None:
    manager = make(64, 2)
    manager.add(3, [1] * 7)
    manager.add(2**62, [1])
    manager.swap_out(2**62)
    data = manager.encode_tables([2**62, 3, 3])
    assert manager.decode_tables(data) == [(2**62, 1, []), (3, 7, manager.table(3)), (3, 7, manager.table(3))]
    assert len(data) <= 64 + 3 * 32 + 8 * 4
    assert manager.decode_tables(manager.encode_tables([])) == []


def test_damaged_messages_are_refused() -> None:
    data = wire.encode_tables([(1, 5, [3, 4, 5])])
    for at in range(len(data)):
        with pytest.raises(BadInput):
            wire.decode_tables(data[:at])
        with pytest.raises(BadInput):
            wire.decode_tables(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    for bad in (data + b"\0", b"", wire.encode_tokens(1, 0, [1]), "text"):
        with pytest.raises(BadInput):
            wire.decode_tables(bad)  # type: ignore[arg-type]


def test_delta_says_what_changed() -> None:
    before = {1: (5, [3, 4, 5]), 2: (2, [7]), 3: (1, [9]), 4: (2, [6])}
    after = {1: (7, [3, 4, 5, 8]), 2: (2, [10]), 4: (2, [6]), 5: (1, [9])}
    data = wire.encode_delta(before, after, 12)
    assert wire.decode_delta(before, data, 12) == after
    assert wire.encode_delta(after, after, 0) == wire.encode_delta({}, {}, 0)
    long = {1: (4000, list(range(1000)))}
    grown = {1: (4001, list(range(1001)))}
    assert len(wire.encode_delta(long, grown, 1)) < 100


def test_delta_refuses_other_steps_and_other_tables() -> None:
    before, after = {1: (4, [3])}, {1: (6, [3, 4])}
    data = wire.encode_delta(before, after, 2)
    with pytest.raises(BadInput, match="step 2, expected step 3"):
        wire.decode_delta(before, data, 3)
    for other in ({}, after):
        with pytest.raises(BadInput, match="sequence 1"):
            wire.decode_delta(other, data, 2)
    gone = wire.encode_delta(before, {}, 2)
    with pytest.raises(BadInput):
        wire.decode_delta({}, gone, 2)


def test_sizes_of_the_chapter() -> None:
    model = {"layers": 1, "kv_heads": 32, "head_dim": 128, "dtype_bytes": 2}
    manager = make(4, 16)
    assert sizing.block_bytes(16, **model) == 262_144
    assert manager.blocks_for(24 * 2**30, 0.8, 0, **model) == 78_643
    assert manager.blocks_for(15 * 2**30, 1, 0, **model) == 61_440
    assert sizing.blocks_for(100, 0.29, 0, 29) == 1  # as doubles, 100 * 0.29 is less than 29
    with pytest.raises(Refused, match="hold no block"):
        manager.blocks_for(2**30, 0.5, 2**29, **model)
    for bad in ((-1, 0.5, 0), (2**30, 0, 0), (2**30, 1.5, 0), (2**30, 0.5, -1)):
        with pytest.raises(BadInput):
            manager.blocks_for(*bad, **model)
    with pytest.raises(BadInput):
        manager.blocks_for(2**30, 0.5, 0, layers=0, kv_heads=1, head_dim=1, dtype_bytes=2)


# ---------------------------------------------------------------- selfcheck


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda m: m.pool.state.__setitem__(0, 2), "owners found"),
        (lambda m: m.pool.push(blocks(7)), "partition"),
        (lambda m: m.prefix.map.clear(), "the map and the keys"),
        (lambda m: m.tables.matrix.__setitem__((0, 5), 3), "padding"),
        (lambda m: m.tables.last_slot.__setitem__(0, 1), "last slot"),
        (lambda m: m.tables.seq_lens.__setitem__(0, 9), "blocks for 9 tokens"),
        (lambda m: m.prefix.generation.__setitem__(0, 5), "stands on a block"),
        (lambda m: setattr(m.pool, "evictable", 3), "evictable blocks counted"),
    ],
)
def test_selfcheck_sees_it(spoil: Any, line: str) -> None:
    manager = make(8, 2)
    started(manager, 0, [1, 2, 3])
    spoil(manager)
    assert any(line in found for found in manager.selfcheck())

"""The reference's ranks: decisions as bytes, and what they cost on the wire."""

from __future__ import annotations

import random

import pytest

from kvproof.contract import BadInput
from kvproof.subjects.network import SimulatedNetwork
from kvproof_impls.reference.decision import Change, Decision, decode, encode
from kvproof_impls.reference.ranks import Group
from kvproof_impls.reference.replica import Replica


def replica_of(lengths: list[int], capacity: int, size: int = 16) -> Replica:
    """Sequences 0, 1, ... of these lengths in random blocks."""
    replica = Replica(capacity, size)
    blocks = random.Random(1).sample(range(capacity), sum(-(-n // size) for n in lengths))
    changes = [
        Change(seq, 0, [7] * n, 0, [blocks.pop() for _ in range(-(-n // size))])
        for seq, n in enumerate(lengths)
    ]
    replica.commit(replica.prepare(Decision(tuple(changes))))
    return replica


def decode_step(replica: Replica) -> Decision:
    idle = random.Random(2).sample(sorted(replica.idle), len(replica.rows))
    full = {seq: row.length % replica.block_size == 0 for seq, row in replica.rows.items()}
    return Decision(
        tuple(
            Change(seq, row.length, [150_000], len(row.blocks), [idle.pop()] if full[seq] else [])
            for seq, row in replica.rows.items()
        )
    )


@pytest.mark.parametrize("changed", [0, 1, 16, 128, 256])
@pytest.mark.parametrize("capacity", [10_000, 2**20])
def test_tables_of_a_decode_step_of_256_sequences(changed: int, capacity: int) -> None:
    """At most 8 bytes a changed entry and 64; tokens and digest are counted apart."""
    lengths = [160] * changed + [155] * (256 - changed)
    random.Random(3).shuffle(lengths)
    replica = replica_of(lengths, capacity)
    decision = decode_step(replica)
    tokens, tables = encode(decision, replica)
    assert len(tables) <= (8 * changed + 64 if changed else 64)
    assert len(tokens) <= 4 * 256 + 8
    assert replica.prepare(decode(tokens, tables, replica)) == replica.prepare(decision)


def test_bytes_that_are_cut_or_longer_are_refused() -> None:
    replica = replica_of([16, 20, 3], 100)
    tokens, tables = encode(decode_step(replica), replica)
    for cut in range(len(tokens)):
        with pytest.raises(BadInput):
            decode(tokens[:cut], tables, replica)
    for cut in range(len(tables)):
        with pytest.raises(BadInput):
            decode(tokens, tables[:cut], replica)
    with pytest.raises(BadInput):
        decode(tokens + b"\0", tables, replica)
    with pytest.raises(BadInput):
        decode(tokens, tables + b"\0", replica)


@pytest.mark.parametrize("world", [2, 4, 64])
def test_a_step_takes_four_messages_a_rank(world: int) -> None:
    """Prepare and commit, each with its answer; two more when a prompt may be cached."""
    network = SimulatedNetwork(world)
    group = Group([100] * world, 16, network)
    group.step([("add", 0, [1] * 40)])
    network.arm(())
    group.step([("append", 0, [1])])
    assert network.messages == 4 * (world - 1)
    network.arm(())
    group.step([("add", 1, [1] * 40)])
    assert network.messages == 6 * (world - 1)


def test_the_example_of_the_chapter() -> None:
    group = Group([50] * 4, 16, SimulatedNetwork(4))
    group.step([("add", 1, [1] * 256)])
    assert [len(group.table(rank, 1)) for rank in range(4)] == [16] * 4
    assert [group.free_blocks(rank) for rank in range(4)] == [34] * 4


def test_own_numbers_differ_and_the_digest_does_not() -> None:
    group = Group([9, 7], 4, SimulatedNetwork(2), own_ids=True)
    group.step([("add", 1, [1] * 9)])
    assert group.table(0, 1) != group.table(1, 1)
    assert group.digest(0) == group.digest(1)

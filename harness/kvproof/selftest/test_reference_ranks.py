"""The reference's ranks: decisions as bytes, and what they cost on the wire."""

from __future__ import annotations

import random
from copy import deepcopy

import pytest

from kvproof.contract import BadInput, UnknownSequence
from kvproof.subjects.network import SimulatedNetwork
from kvproof_impls.reference.decision import MANY, Change, Decision, decode, encode
from kvproof_impls.reference.rank import Kind, Rank, pack, pack_size, unpack
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


@pytest.mark.parametrize("count", [MANY - 1, MANY, 3000])
@pytest.mark.parametrize("widest", [7, 56, 60])
def test_numbers_of_every_width_come_back(count: int, widest: int) -> None:
    draw = random.Random(count)
    tokens = [draw.randrange(2 ** draw.randint(1, widest)) for _ in range(count)]
    decision = Decision((Change(5, 0, tokens, 0, draw.sample(range(10**6), -(-count // 4))),))
    parts = encode(decision, replica_of([1], 9))
    assert decode(*parts, replica_of([1], 9)) == decision


@pytest.mark.parametrize("widest", [7, 28, 60])
def test_a_long_step_that_is_cut_or_longer_is_refused(widest: int) -> None:
    replica = replica_of([3] * MANY, 100)
    steps = [replica.batch, (0,)]
    for seqs in steps:
        count = 1 if len(seqs) > 1 else MANY
        changes = (Change(seq, 3, [2**widest - 1] * count, 1, [50] * (count // 16)) for seq in seqs)
        tokens, tables = encode(Decision(tuple(changes)), replica)
        assert tokens[0] == (len(seqs) > 1), "a step of the same batch, and another one"
        for cut in (1, 2, len(tokens) // 2, len(tokens) - 1):
            with pytest.raises(BadInput):
                decode(tokens[:cut], tables, replica)
        with pytest.raises(BadInput):
            decode(tokens + b"\0", tables, replica)


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


WRONG = {
    "a block of another": Decision((Change(9, 0, [1], 0, [0]),)),
    "one block twice": Decision((Change(9, 0, [1], 0, [7]), Change(8, 0, [1], 0, [7]))),
    "a block that others keep": Decision((Change(9, 0, [1], 0, [0]),), (1,)),
    "a hit that is not cached": Decision((Change(9, 4, [1], 0, [7, 8]),)),
    "a hit that is used again": Decision((Change(9, 4, [1], 0, [3, 7]), Change(8, 0, [1], 0, [3])), (2,)),
    "a gap between positions": Decision((Change(2, 6, [1], 2, []),)),
    "positions computed already": Decision((Change(2, 4, [1], 2, []),)),
    "a resume that is short": Decision((Change(2, 0, [1], 0, [7]),)),
    "one sequence twice": Decision((Change(9, 0, [1], 0, [7]), Change(9, 0, [1], 0, [8]))),
    "removed twice": Decision((), (0, 0)),
    "removed and changed": Decision((Change(2, 5, [1], 2, []),), (2,)),
    "an unknown sequence removed": Decision((), (9,)),
    "a block that is none": Decision((Change(9, 0, [1], 0, [10]),)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_decision_that_does_not_fit_is_refused_before_anything_changes(name: str) -> None:
    """What a rank has prepared cannot fail when it is committed."""
    replica = Replica(10, 4)
    shared = Decision((Change(0, 0, [5] * 5, 0, [0, 1]), Change(2, 0, [6] * 5, 0, [3, 4])))
    replica.commit(replica.prepare(shared))
    replica.commit(replica.prepare(Decision((Change(1, 4, [5], 0, [0, 2]),))))
    before = deepcopy(vars(replica))
    with pytest.raises((BadInput, UnknownSequence)):
        replica.prepare(WRONG[name])
    assert vars(replica) == before


def test_a_rank_answers_every_intact_message_and_no_other() -> None:
    """Whatever a body holds, the rank neither fails nor changes; a damaged or old one has no answer."""
    draw, rank = random.Random(4), Rank(1, 8, 4, False)
    assert rank.handle(pack(Kind.SIZE, 1, 1)) == pack(Kind.SIZE, 1, 1, pack_size(8))
    start = pack(Kind.START, 1, 2, pack_size(6))
    for bit in range(8 * len(start)):
        damaged = bytearray(start)
        damaged[bit // 8] ^= 1 << bit % 8
        assert rank.handle(bytes(damaged)) is None
    assert all(rank.handle(start[:cut]) is None for cut in range(len(start)))
    assert unpack(rank.handle(pack(Kind.START, 1, 2, pack_size(9))) or b"")[0] == Kind.REFUSED  # type: ignore[index]
    assert rank.handle(pack(Kind.START, 1, 3, pack_size(6))) == pack(Kind.START, 1, 3)
    serial = 3
    for kind in range(12):
        for size in (0, 1, 3, 4, 5, 20, 21, 40):
            serial += 1
            answer = rank.handle(pack(kind, 1, serial, draw.randbytes(size)))
            assert answer is not None
            assert unpack(answer) is not None
    assert rank.handle(pack(Kind.COMMIT, 1, 3)) is None
    assert (rank.replica.epoch, rank.replica.rows) == (0, {})

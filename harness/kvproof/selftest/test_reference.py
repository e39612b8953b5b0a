"""The inside of the reference: what the conformance suite, which sees only the contract, cannot reach."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from kvproof.contract import BadInput, OutOfBlocks, Refused, UnknownSequence
from kvproof_impls.reference import sizing, wire
from kvproof_impls.reference.adapter import make, make_reserved, make_uncached
from kvproof_impls.reference.hashing import Hasher, media_tags, seed_of
from kvproof_impls.reference.inputs import Domain, Media, token_array
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.pool import Pool
from kvproof_impls.reference.prefix import NEVER, PrefixCache


def blocks(*ids: int) -> Any:
    return np.array(ids, np.int32)


def started(manager: Manager, seq: int, tokens: list[int], **keys: Any) -> int:
    """Add and commit all."""
    cached = manager.add(seq, tokens, keys or None)
    manager.commit(seq, len(tokens))
    assert manager.selfcheck() == []
    return cached


# ---------------------------------------------------------------- pool


def test_pool_takes_used_then_new_then_evicts() -> None:
    evicted: list[int] = []
    pool = Pool(6, 0, lambda victims: evicted.extend(victims.tolist()))
    assert pool.take(4).tolist() == [0, 1, 2, 3]
    pool.push(pool.release(blocks(1)))
    pool.queue(pool.release(blocks(3, 0)))
    assert pool.available == 5
    assert pool.take(4).tolist() == [1, 4, 5, 3]
    assert evicted == [3]
    assert (pool.free, pool.evictable) == (0, 1)


def test_pool_takes_all_or_nothing() -> None:
    pool = Pool(4, 0, lambda _: None)
    pool.take(2)
    with pytest.raises(OutOfBlocks, match="3 blocks needed, 2 available"):
        pool.take(3)
    assert pool.available == 2
    assert pool.take(0).tolist() == []


def test_free_blocks_come_back_last_in_first_out() -> None:
    pool = Pool(8, 0, lambda _: None)
    taken = pool.take(3)
    pool.push(pool.release(taken[::-1]))
    assert pool.take(3).tolist() == taken.tolist()


def test_log_is_compacted_and_keeps_the_order() -> None:
    pool = Pool(16, 0, lambda _: None)
    pool.take(16)
    order: list[int] = []
    rng = random.Random(1)
    for _ in range(6000):
        block = rng.randrange(16)
        if block in order:
            order.remove(block)
            pool.retain(blocks(block))
        else:
            order.append(block)
            pool.queue(pool.release(blocks(block)))
        assert pool.evictable == len(order)
    assert pool.queued().tolist() == order
    assert len(pool._log) <= 4096
    victims = pool.evict(len(order))
    assert victims.tolist() == order


def test_log_grows_past_its_first_size() -> None:
    pool = Pool(10_000, 0, lambda _: None)
    taken = pool.take(10_000)
    pool.queue(pool.release(taken[:9000]))
    pool.queue(pool.release(taken[9000:]))
    assert pool.evict(3).tolist() == [0, 1, 2]
    assert pool.evictable == 9997


def test_a_million_idle_blocks_take_24_bytes_each() -> None:
    manager = make(1_000_000, 16)
    parts = (manager.pool, manager.prefix, manager.tables)
    arrays = [a for part in parts for name, a in vars(part).items() if name != "tokens"]
    total = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray))
    assert total / 1_000_000 <= 24.01


# ---------------------------------------------------------------- tables


def test_lowest_row_is_used_again_and_is_clean() -> None:
    manager = make(32, 2)
    for seq in range(4):
        manager.add(seq, [1] * 8)
    manager.free(2)
    manager.free(1)
    manager.add(9, [1])
    assert manager.tables.row_of == {0: 0, 3: 3, 9: 1}
    assert manager.tables.matrix[1].tolist()[1:] == [-1] * (manager.tables.matrix.shape[1] - 1)
    assert manager.batch([9, 0])[0].tolist()[0][1:] == [-1, -1, -1]


def test_batch_of_the_first_rows_is_a_view_and_others_are_gathered() -> None:
    manager = make(32, 2)
    for seq in (5, 6, 7):
        manager.add(seq, [1, 2, 3])
    matrix = manager.tables.matrix
    assert np.shares_memory(manager.batch([5, 6])[0], matrix)
    assert not np.shares_memory(manager.batch([6, 5])[0], matrix)
    assert manager.batch([6, 5, 6])[0].tolist() == [manager.table(s) for s in (6, 5, 6)]


def test_remembered_batch_ends_with_its_sequences() -> None:
    manager = make(32, 2)
    manager.add(0, [1])
    manager.add(1, [1])
    manager.append_batch([0, 1], [2, 2])
    manager.free(0)
    with pytest.raises(UnknownSequence):
        manager.append_batch([0, 1], [2, 2])
    manager.add(2, [3])
    manager.append_batch([2, 1], [2, 2])
    manager.swap_out(1)
    with pytest.raises(Refused):
        manager.append_batch([2, 1], [2, 2])


def test_ids_of_a_batch_may_be_an_array() -> None:
    manager = make(32, 2)
    manager.add(0, [1])
    manager.add(1, [1])
    assert len(manager.append_batch(np.array([1, 0]), np.array([4, 5]))) == 2  # type: ignore[arg-type]
    assert manager.wire(1) == [1, 4]


def test_two_sharers_in_one_step_copy_once() -> None:
    manager = make(8, 4)
    started(manager, 0, [1, 2])
    manager.fork(0, 1)
    slots = manager.append_batch([0, 1], [3, 4])
    assert manager.copies() == [(0, 1)]
    assert slots.tolist() == [6, 2]
    assert manager.selfcheck() == []


def test_step_that_fails_on_a_copy_changes_nothing() -> None:
    manager = make(2, 4)
    started(manager, 0, [1, 2])
    manager.fork(0, 1)
    manager.alloc()
    before = manager.table(0), manager.table(1), manager.tables.seq_lens.tolist()
    with pytest.raises(OutOfBlocks):
        manager.append_batch([0, 1], [3, 4])
    assert before == (manager.table(0), manager.table(1), manager.tables.seq_lens.tolist())
    assert manager.copies() == []


# ---------------------------------------------------------------- keys

PROGRAM = """
from kvproof_impls.reference.adapter import make
keys = {"salt": "s", "adapter": "a", "media": [(2, 3, "m")]}
print([key.hex() for key in make(4, 4).block_keys(list(range(13)), keys)])
"""


def test_keys_are_the_same_in_every_process() -> None:
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=True)
        found.add(run.stdout)
    assert len(found) == 1
    assert found.pop().decode().strip() == str(
        [
            key.hex()
            for key in make(4, 4).block_keys(
                list(range(13)), {"salt": "s", "adapter": "a", "media": [(2, 3, "m")]}
            )
        ]
    )


def test_a_key_depends_on_each_token_and_on_all_before() -> None:
    manager = make(4, 4)
    base = list(range(100, 116))
    keys = manager.block_keys(base)
    assert len(set(keys)) == 4
    for i in range(16):
        other = manager.block_keys([*base[:i], 7, *base[i + 1 :]])
        assert [a == b for a, b in zip(keys, other, strict=True)] == [j < i // 4 for j in range(4)]
    swapped = manager.block_keys(base[4:8] + base[:4] + base[8:])
    assert not set(swapped) & set(keys)


def test_blocks_of_zeros_have_keys_of_their_own() -> None:
    assert len(set(make(4, 4).block_keys([0] * 64))) == 16


def test_keys_of_random_blocks_do_not_collide() -> None:
    hasher = Hasher(2)
    tokens = np.array([(a, b) for a in range(300) for b in range(300)], np.int32)
    assert len(np.unique(hasher.digests(tokens))) == len(tokens)


def test_domains_are_apart() -> None:
    domains = [Domain(), Domain(""), Domain(None, ""), Domain("", ""), Domain("ab", "c"), Domain("a", "bc")]
    domains += [Domain("x"), Domain(None, "x")]
    assert len({seed_of(domain) for domain in domains}) == len(domains)
    manager = make(64, 2)
    for seq, domain in enumerate(domains):
        given = {k: v for k, v in domain._asdict().items() if v is not None}
        assert started(manager, seq, [1, 2, 3], **given) == 0


def test_a_domain_is_forgotten_with_its_last_block() -> None:
    manager = make(2, 2)
    for seq in range(20):
        started(manager, seq, [1, 2, 3], salt=str(seq))
        manager.free(seq)
    assert manager.prefix is not None
    assert len(manager.prefix.domain_users()) == 1


def test_media_separate_from_their_block_on() -> None:
    manager = make(64, 2)
    tokens = [1, 2, 3, 4, 5, 6, 7]
    started(manager, 0, tokens, media=[(2, 1, "cat")])
    assert manager.match(tokens, {"media": [(2, 1, "cat")]}) == 6
    assert manager.match(tokens, {"media": [(2, 1, "dog")]}) == 2
    assert manager.match(tokens, {"media": [(3, 1, "cat")]}) == 2
    assert manager.match(tokens) == 2
    assert media_tags((Media(1, 2, "x"),), 0, 3, 2) == {0: (Media(1, 2, "x"),), 1: (Media(-1, 2, "x"),)}


# ---------------------------------------------------------------- prefix cache


class WeakHasher(Hasher):
    """Four different keys in all."""

    def keys(self, states: Any) -> Any:
        return (super().keys(states) >> 7 & 3) + 1


class WeakCache(PrefixCache):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.hasher = WeakHasher(block_size)


class WeakManager(Manager):
    prefix_type = WeakCache


def test_colliding_keys_serve_nothing_foreign() -> None:
    rng = random.Random(3)
    manager = WeakManager(12, 2)
    written: dict[int, tuple[int, ...]] = {}
    hits = 0
    for seq in range(400):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 9))]
        cached = manager.add(seq, tokens)
        hits += cached > 0
        for i, block in enumerate(manager.table(seq)):
            if i * 2 < cached:
                assert written[block] == tuple(tokens[: i * 2 + 2])
            else:
                written[block] = tuple(tokens[: i * 2 + 2])
        manager.commit(seq, len(tokens))
        manager.free(seq)
        assert manager.selfcheck() == []
    assert hits > 20


def twins(manager: Manager) -> None:
    """Sequences 0 and 1 with an equal start, admitted before either was computed; 1 is longer."""
    manager.add(0, [1, 2, 3, 4])
    manager.add(1, [1, 2, 3, 4, 5, 6])
    manager.commit(0, 4)
    manager.commit(1, 6)
    assert manager.selfcheck() == []


def test_equal_blocks_are_published_once() -> None:
    manager = make(16, 2)
    twins(manager)
    assert manager.prefix is not None
    assert sorted(manager.prefix.map.values()) == [0, 1, 4]
    assert manager.prefix.parent[4] == manager.prefix.identity(1)
    manager.free(1)
    assert (manager.pool.evictable, manager.free_blocks()) == (1, 14)
    assert started(manager, 2, [1, 2, 3, 4, 5, 6, 7]) == 6


def test_borrower_publishes_its_own_when_the_lender_is_evicted() -> None:
    manager = make(7, 2)
    twins(manager)
    manager.free(0)
    manager.add(2, [9, 9, 9, 9, 9, 9, 9])  # takes the two that were never used and the lenders
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == 0
    assert manager.selfcheck() == []
    manager.commit(1, 6)
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == 6
    assert manager.selfcheck() == []


def test_orphan_is_never_served_and_makes_way() -> None:
    manager = make(7, 2)
    twins(manager)
    manager.free(0)
    manager.free(1)
    assert manager.pool.queued().tolist() == [1, 0, 4]
    started(manager, 2, [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8])  # evicts blocks 1 and 0
    manager.free(2)
    orphan = 4
    assert manager.prefix is not None
    assert manager.prefix.key[orphan]
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == 0
    manager.retain(manager.alloc())  # one block away, so that the orphan is not simply evicted
    started(manager, 3, [1, 2, 3, 4, 5, 6])
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == 6
    assert orphan not in manager.pool.queued().tolist() or manager.prefix.key[orphan]
    assert len(set(manager.prefix.map.values())) == len(manager.prefix.map)


def test_a_block_used_again_is_another_predecessor() -> None:
    manager = make(4, 2)
    assert manager.prefix is not None
    started(manager, 0, [1, 2, 3])
    before = manager.prefix.identity(0)
    manager.free(0)
    started(manager, 1, [5] * 8)
    manager.free(1)
    assert manager.prefix.identity(0) != before
    assert manager.match([1, 2, 3]) == 0


def test_identities_stay_positive_when_generations_start_again() -> None:
    manager = make(4, 2)
    assert manager.prefix is not None
    manager.prefix.generation[:] = 2**31 - 1
    started(manager, 0, [1, 2, 3])
    manager.free(0)
    started(manager, 1, [5] * 8)
    assert manager.prefix.generation[0] == 0
    assert manager.prefix.identity(1) > 0


def test_sole_owner_withdraws_what_it_changes() -> None:
    manager = make(8, 4)
    started(manager, 0, [1, 2, 3, 4, 5])
    manager.truncate(0, 2)
    assert manager.match([1, 2, 3, 4, 5]) == 4
    manager.append(0, [9])
    assert manager.copies() == []
    assert manager.match([1, 2, 3, 4, 5]) == 0
    assert manager.selfcheck() == []


def test_shared_published_block_is_copied_after_truncate() -> None:
    manager = make(8, 4)
    started(manager, 0, [1, 2, 3, 4, 5])
    assert started(manager, 1, [1, 2, 3, 4, 6]) == 4
    manager.truncate(0, 2)
    manager.append(0, [9])
    assert manager.copies() == [(0, manager.table(0)[0])]
    assert manager.table(1)[0] == 0
    assert manager.match([1, 2, 3, 4, 5]) == 4


def test_reset_forgets_and_running_sequences_publish_no_more() -> None:
    manager = make(8, 2)
    started(manager, 0, [1, 2, 3, 4])
    started(manager, 1, [7, 7, 7])
    manager.free(1)
    assert manager.reset_prefix_cache() is True
    assert (manager.pool.evictable, manager.free_blocks()) == (0, 6)
    manager.append(0, [5, 6])
    manager.commit(0, 6)
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == 0
    manager.free(0)
    assert manager.free_blocks() == 8
    assert started(manager, 2, [1, 2, 3]) == 0
    assert started(manager, 3, [1, 2, 4]) == 2


def test_tail_is_evicted_before_head() -> None:
    manager = make(4, 2)
    started(manager, 0, [1, 2, 3, 4, 5, 6, 7])
    manager.free(0)
    manager.add(1, [9, 9, 9])
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == 4


def test_a_step_publishes_all_rows_at_once_and_one_by_one_alike() -> None:
    one, many = make(64, 2), make(64, 2)
    for manager in (one, many):
        for seq in range(4):
            started(manager, seq, [seq % 3, 1, 2])
    for seq in range(4):
        one.append(seq, [seq % 3])
        one.commit(seq, 4)
    many.append_batch([0, 1, 2, 3], [0, 1, 2, 0])
    many.commit_batch([0, 1, 2, 3])
    assert one.prefix is not None
    assert many.prefix is not None
    assert one.prefix.map.keys() == many.prefix.map.keys()
    assert many.selfcheck() == []


def test_closed_chain_stays_closed() -> None:
    manager = make(8, 2)
    started(manager, 0, [1, 2, 3])
    manager.reset_prefix_cache()
    manager.truncate(0, 1)
    manager.swap_out(0)
    manager.swap_in(0)
    assert manager.prefix is not None
    assert manager.prefix.due[0] == NEVER


# ---------------------------------------------------------------- swap and storage


def test_swap_carries_tokens_and_contents() -> None:
    manager = make(6, 2)
    started(manager, 0, [1, 2, 3, 4])
    for position, block in enumerate(manager.table(0)):
        manager.write(block, 1, float(position + 10))
    manager.append(0, [5])
    manager.swap_out(0)
    assert [target for _, target in manager.copies()] == [("host", 0), ("host", 1), ("host", 2)]
    assert manager.table(0) == []
    assert manager.wire(0) == [5]
    started(manager, 1, [7] * 9)
    with pytest.raises(OutOfBlocks):
        manager.swap_in(0)
    manager.free(1)
    manager.swap_in(0)
    assert manager.wire(0) == [5]
    assert [manager.read(block, 1) for block in manager.table(0)[:2]] == [10.0, 11.0]
    manager.commit(0, 5)
    assert manager.match([1, 2, 3, 4, 5]) == 4
    assert manager.selfcheck() == []


def test_full_host_tier_fails_whole() -> None:
    manager = make(4, 2)
    for seq in range(2):
        manager.add(seq, [seq] * 8)
        manager.swap_out(seq) if not seq else None
    with pytest.raises(OutOfBlocks):
        manager.swap_out(1)
    assert len(manager.table(1)) == 4
    manager.free(0)
    manager.swap_out(1)
    assert manager.selfcheck() == []


def test_copy_on_write_copies_the_storage() -> None:
    manager = make(4, 2)
    started(manager, 0, [1])
    manager.write(0, 0, 4.5)
    manager.fork(0, 1)
    manager.append(1, [2])
    assert manager.read(manager.table(1)[0], 0) == 4.5
    with pytest.raises(BadInput, match="offset"):
        manager.read(0, 2)


def test_raw_releases_are_all_or_nothing() -> None:
    manager = make(4, 2)
    block = manager.alloc()
    manager.retain(block)
    with pytest.raises(BadInput, match="3 releases, 2 references"):
        manager.release_many([block, block, block])
    assert manager.refcount(block) == 2
    manager.release_many([block, block])
    assert manager.pool.stacked().tolist() == [block]
    with pytest.raises(BadInput):
        manager.retain(block)
    manager.add(0, [1])
    with pytest.raises(BadInput):
        manager.release(manager.table(0)[0])  # the sequence's reference is not ours to drop


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

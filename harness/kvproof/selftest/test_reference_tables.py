"""The inside of the reference: pool, tables, swap and storage."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvproof.contract import BadInput, OutOfBlocks, Refused, UnknownSequence
from kvproof.selftest.reference_calls import blocks, started
from kvproof_impls.reference.adapter import make
from kvproof_impls.reference.pool import Pool

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

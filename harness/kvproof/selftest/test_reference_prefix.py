"""The inside of the reference: keys and the prefix cache."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np

from kvproof.selftest.reference_calls import started
from kvproof_impls.reference.adapter import make
from kvproof_impls.reference.hashing import Hasher, media_tags, seed_of
from kvproof_impls.reference.inputs import Domain, Media
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.prefix import NEVER, PrefixCache

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
    assert len(manager.prefix.domains.users) == 1


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

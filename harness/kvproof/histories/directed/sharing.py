"""SHARE, TRUNC: fork, copy-on-write, truncation."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.histories.build import History
from kvproof.histories.directed.pool import tokens
from kvproof.records import Case


def cases() -> Iterator[Case]:
    for size in (2, 3, 4, 16):
        for length in (size - 1, size, size + 1, 3 * size - 1):
            yield (
                History().add(0, tokens(length)).fork(0, 1).append(0, 8).append(1, 9).append(0, 8)
                .free(0).append(1, 9).free(1).reclaim()
                .case(f"share/fork-{size}-{length}", ("SHARE-001", "SHARE-002"), 12, size,
                    note="fork at and around a block edge, then both append")
            )
    yield (
        History().add(0, tokens(6)).fork(0, 1).fork(1, 2).fork(0, 3).free(1).append(2, 9).append(3, 8)
        .append(0, 7).free(0, 2, 3).reclaim()
        .case("share/fork-of-a-fork", ("SHARE-001", "SHARE-007"), 14, 4,
            note="references of a tree of forks")
    )
    chain, crowd = History().add(0, tokens(6)), History().add(0, tokens(5))
    for i in range(5):
        chain.fork(i, i + 1)
    for i in range(1, 21):
        crowd.fork(0, i)
    yield (
        chain.append(5, 9).append(0, 8).free(2, 0, 4, 5).append(1, 7).free(1, 3).reclaim()
        .case("share/chain-of-forks", ("SHARE-007", "SHARE-001"), 12, 4, needs=("refcount",),
            note="references of a child of a child of a child")
    )
    yield (
        crowd.append(20, 9).free(*range(20)).append(20, 8).free(20).reclaim()
        .case("share/twenty-readers", ("SHARE-001", "SHARE-005"), 8, 4,
            stands_for=("POOL-001", "POOL-002", "POOL-008", "SHARE-007"),
            note="a reference count of a few bits stops counting")
    )
    yield (
        History().add(0, tokens(5)).fork(0, 1).append(1, 9).append(0, 8).free(0, 1)
        .case("share/append-after-fork", "SHARE-002", 8, 4, stands_for=("DATA-001",),
            note="parent and child overwrite each other's slot")
    )
    yield (
        History().add(0, tokens(7)).fork(0, 1).append(1, 9).append(1, 10).append(0, 8).append(0, 9)
        .free(0, 1)
        .case("share/all-slots-of-the-copy", ("SHARE-002", "DATA-001"), 8, 4, needs=("data",),
            note="the copy takes one slot too few")
    )
    yield (
        History().add(0, tokens(3)).fork(0, 1)
        .append(0, 8, expect={"outcome": ["OutOfBlocks", "Refused"]}).free(1).append(0, 8).free(0)
        .reclaim()
        .case("share/copy-with-empty-pool", "SHARE-003", 2, 2,
            stands_for=("POOL-001", "SHARE-002", "SHARE-007"),
            note="no block for the copy: nothing has changed")
    )
    yield (
        History().add(0, tokens(3)).fork(0, 1).op("append", seq=1, tokens=tokens(4, 50)).free(0)
        .append(1, 9).free(1).reclaim()
        .case("share/roll-back-after-copy", "SHARE-003", 3, 2, needs=("multi", "defer"),
            stands_for=("POOL-001", "POOL-002", "SHARE-007", "POOL-008"),
            note="the copy succeeds, the rest does not fit: the fresh copy leaks, the shared tail loses a reference")
    )
    yield (
        History().add(0, tokens(3)).add(2, tokens(2, 70)).fork(0, 1).op("fork", seq=0, child=3)
        .append(0, 5, commit=False, expect={"outcome": ["OutOfBlocks", "Refused"]}).free(1, 3)
        .append(0, 6).free(0, 2)
        .case("share/fork-full-pool", "SHARE-003", 3, 2,
            stands_for=("POOL-001", "POOL-004", "SHARE-007"), note="fork and append on a full pool")
    )
    yield (
        History().add(0, tokens(3)).fork(0, 1).append(1, 9).append(0, 8).append(0, 7).free(0, 1)
        .case("share/last-reader-in-place", "SHARE-004", 8, 4,
            note="a copy though only one owner is left")
    )
    yield (
        History().add(0, tokens(3)).append(0, 8).append(0, 9).append(0, 10).free(0)
        .case("share/one-owner-in-place", "SHARE-004", 8, 4)
    )
    for first, second in ((0, 1), (1, 0)):
        yield (
            History().add(0, tokens(6)).fork(0, 1).append(1, 9).free(first).add(2, tokens(4, 50))
            .append(second, 7).free(second).add(3, tokens(8, 70)).free(2, 3).reclaim()
            .case(f"share/free-order-{first}", "SHARE-005", 7, 4,
                stands_for=("POOL-001", "POOL-002", "POOL-008", "SHARE-007", "SHARE-002"),
                note="whoever goes first, the other reads on and the pool is whole at the end")
        )
    yield (
        History().add(0, tokens(6)).fork(0, 1).fork(0, 2).append(0, 7).append(1, 8).append(2, 9)
        .append(1, 8).free(0, 1, 2)
        .case("share/every-copy-named", "SHARE-006", 9, 4, needs=("copies",),
            note="copies() leaves one out, or names them in the wrong order")
    )
    yield (
        History().add(0, tokens(3)).add(1, tokens(3, 50)).fork(0, 2).fork(1, 3)
        .step([0, 1, 2, 3], [5, 6, 7, 8]).step([0, 1, 2, 3], [5, 6, 7, 8]).free(0, 1, 2, 3).reclaim()
        .case("share/copies-in-one-step", ("SHARE-006", "SHARE-002", "STEP-001"), 14, 4,
            note="several copies in one decode step")
    )
    yield (
        History().add(0, tokens(5)).add(1, tokens(5)).free(0).add(2, tokens(5)).fork(1, 3).free(1, 2, 3)
        .case("share/recount", "SHARE-007", 9, 2, needs=("prefix", "refcount"),
            note="a prefix hit is not counted")
    )
    yield (
        History().add(0, tokens(5)).add(1, tokens(5)).append(1, 8).free(0).add(2, tokens(5)).free(1, 2)
        .case("share/recount-without-forks", "SHARE-007", 9, 2, needs=("refcount",),
            note="one reference a sequence, also where they have blocks in common")
    )
    yield from _truncate()


def _truncate() -> Iterator[Case]:
    for size in (2, 4, 16):
        for to in (size, size + 1, 1):
            yield (
                History().add(0, tokens(3 * size)).append(0, 8).truncate(0, to).append(0, 9)
                .append(0, 10).free(0).reclaim()
                .case(f"trunc/{size}-to-{to}", "TRUNC-001", 8, size,
                    note="whole blocks past the new end go back, the rest stays")
            )
    yield (
        History().add(0, tokens(8)).fork(0, 1).truncate(0, 3).append(0, 50).append(0, 51).append(1, 9)
        .free(0).append(1, 10).free(1).reclaim()
        .case("trunc/shared", "TRUNC-001", 9, 4,
            stands_for=("SHARE-002", "POOL-001", "POOL-002", "SHARE-007"),
            note="the block that is cut belongs to the other sequence too")
    )
    yield (
        History().add(0, tokens(9)).add(1, tokens(9)).truncate(1, 3).append(1, 50).append(1, 51)
        .append(0, 7).free(1).add(2, tokens(9)).free(0, 2).reclaim()
        .case("trunc/cached", "TRUNC-001", 12, 4, needs=("prefix",),
            stands_for=("POOL-001", "POOL-002", "SHARE-007", "PREFIX-001", "PREFIX-002", "EVICT-002"),
            note="the block that is cut is cached and shared: it stays as it was for the others")
    )
    yield (
        History().add(0, tokens(9)).truncate(0, 3).append(0, 50).append(0, 51).append(0, 52).free(0)
        .add(2, tokens(9)).free(2)
        .case("trunc/published-then-written", ("TRUNC-001", "EVICT-002"), 12, 4, needs=("prefix",),
            stands_for=("PREFIX-001", "PREFIX-002", "PREFIX-008", "EVICT-002"),
            note="a published block is cut and written again: its old identity must go first")
    )
    yield (
        History().add(0, tokens(9)).truncate(0, 3).step([0], [50]).step([0], [51]).free(0)
        .add(2, tokens(9)).free(2)
        .case("trunc/published-then-stepped", ("TRUNC-001", "EVICT-002", "STEP-001"), 12, 4,
            needs=("prefix",), stands_for=("PREFIX-001", "PREFIX-002", "PREFIX-008", "EVICT-002"),
            note="the same, written by append_batch, which forgets to clear the identity")
    )

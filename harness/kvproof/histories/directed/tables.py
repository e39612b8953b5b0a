"""TABLE, STEP, SELF, DATA, BATCH, SLOT, SIZE, WIRE, PROBE."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.histories.build import History
from kvproof.histories.directed.pool import tokens
from kvproof.records import Case

GIB = 1024**3


def cases() -> Iterator[Case]:
    yield from _lengths()
    yield from _stability()
    yield from _steps()
    yield from _batches()
    yield from _slots()
    yield from _sizes()
    yield from _wire()
    yield from _probes()


def _lengths() -> Iterator[Case]:
    for size in (1, 2, 3, 4, 16):
        h = History()
        for i, n in enumerate(
            sorted({1, size - 1, size, size + 1, 3 * size - 1, 3 * size, 3 * size + 1} - {0})
        ):
            h.add(i, tokens(n, 40 * i + 1))
            for k in range(size + 1):
                h.append(i, 900 + k)
            h.free(i)
        yield (
            h
            .case(f"table/edges-{size}", "TABLE-001", 8, size,
                note="one block late or early at a block edge")
        )
    yield (
        History().add(0, tokens(500), expect={"table_len": 32})
        .op("append", seq=0, tokens=tokens(200, 1000), expect={"table_len": 44}).commit(0).free(0)
        .case("table/chapter-500-and-200", "TABLE-001", 64, 16, needs=("multi",),
            note="chapter 3.2.1: 500 tokens are 32 blocks of 16, 200 more take 12; tokens are counted, not blocks")
    )
    yield (
        History().add(0, tokens(5)).append(0, 8).append(0, 9).append(0, 10).append(0, 11).free(0)
        .case("table/no-more-than-needed", "TABLE-006", 16, 2,
            note="a table that grows ahead of its tokens")
    )


def _stability() -> Iterator[Case]:
    yield (
        History().add(0, tokens(7)).add(1, tokens(7, 50)).fork(0, 2).append(2, 9).append(0, 8).free(2)
        .append(0, 8).add(3, tokens(4, 90)).free(0, 1, 3)
        .case("table/entries-after-copy", "TABLE-002", 10, 4, stands_for=("SHARE-006", "SHARE-002"),
            note="a stale entry is left after a copy-on-write")
    )
    yield (
        History().add(0, tokens(5)).add(1, tokens(5, 50)).free(0).add(2, tokens(3, 80)).append(1, 9)
        .free(1, 2)
        .case("table/distinct-entries", "TABLE-002", 6, 2)
    )
    yield (
        History().add(0, tokens(5)).add(1, tokens(5, 30)).add(2, tokens(5, 60)).free(1).append(2, 8)
        .append(0, 9).free(0).append(2, 8).free(2)
        .case("table/no-compaction", "TABLE-003", 10, 2,
            note="blocks of a running sequence are moved together")
    )
    h = History().add(0, tokens(3)).op("table", seq=0).append(0, 9).append(0, 10).append(0, 11)
    yield (
        h.add(1, tokens(3, 50)).free(0).add(2, tokens(5, 70)).free(1, 2)
        .case("table/callers-copy", "TABLE-005", 8, 2,
            note="table() returns a live view that later calls rewrite")
    )
    yield (
        History().add(0, tokens(3)).op("table", seq=0, args={"scribble": True}).append(0, 9)
        .op("table", seq=0, args={"scribble": True}).append(0, 10).append(0, 11).add(1, tokens(5, 50))
        .op("table", seq=1, args={"scribble": True}).op("table", seq=0, args={"scribble": True}).free(0, 1)
        .case("table/callers-own", "TABLE-005", 8, 2,
            note="table() returns the manager's own list: a caller that writes into it changes the manager")
    )
    yield (
        History().add(0, tokens(5)).fork(0, 1).append(0, 8).append(0, 9).append(1, 7).append(1, 6)
        .free(0).append(1, 5).free(1)
        .case("table/fork-has-its-own", "TABLE-005", 10, 2, stands_for=("TABLE-003", "TABLE-001"),
            note="parent and child share one list")
    )
    yield (
        History().add(0, tokens(7)).fork(0, 1).append(0, 8).append(1, 9).truncate(0, 3).append(0, 5)
        .free(0, 1)
        .case("self/after-everything", "SELF-001", 10, 4, needs=("selfcheck",))
    )
    yield (
        History().add(0, tokens(6)).fork(0, 1).append(1, 9).append(1, 10).append(1, 11).append(0, 8)
        .free(0).add(2, tokens(5, 40)).free(1, 2)
        .case("data/fork", "DATA-001", 8, 4, needs=("data",), note="real storage through copy-on-write")
    )
    yield (
        History().add(0, tokens(7)).op("swap_out", seq=0).add(1, tokens(7, 50)).op("swap_in", seq=0)
        .append(0, 9).free(0, 1)
        .case("data/swap", "DATA-001", 8, 2, needs=("data",), note="real storage through swap")
    )


def _steps() -> Iterator[Case]:
    h = History()
    for i, n in enumerate((3, 4, 5, 1)):
        h.add(i, tokens(n, 20 * i + 1))
    for k in range(6):
        h.step([0, 1, 2, 3], [60 + k, 70 + k, 80 + k, 90 + k])
    yield (
        h.batch(0, 1, 2, 3).free(0, 1, 2, 3).reclaim()
        .case("step/equals-appends", "STEP-001", 20, 2,
            stands_for=("TABLE-001", "POOL-001", "TABLE-003"),
            note="a decode step is the appends one by one")
    )
    yield (
        History().add(0, tokens(4)).add(1, tokens(4, 20)).add(2, tokens(1, 40))
        .op("append_batch", seqs=[2, 0, 1], tokens=[7, 8, 9]).op("append_batch", seqs=[2], tokens=[7])
        .op("commit_batch", seqs=[2]).free(0, 1, 2).reclaim()
        .case("step/all-or-nothing", "STEP-001", 6, 2, needs=("defer",),
            stands_for=("POOL-001", "POOL-004", "TABLE-001"),
            note="room for the first sequence of the step and not for the last: half a step on failure")
    )
    yield (
        History().add(0, tokens(3)).add(1, tokens(3, 20))
        .op("append_batch", seqs=[0, 1, 0], tokens=[7, 8, 9], args={"bad": "a sequence listed twice"})
        .op("append_batch", seqs=[0, 9], tokens=[7, 8],
            args={"bad": "an unknown sequence", "unknown": True}).step([1, 0], [8, 7]).free(0, 1)
        .reclaim()
        .case("step/duplicates", "STEP-001", 8, 2, stands_for=("POOL-001", "TABLE-001"))
    )
    what = {"bad": "lists of different lengths"}
    yield (
        History().add(0, tokens(3)).add(1, tokens(3, 20))
        .op("append_batch", seqs=[0, 1], tokens=[7], args=what)
        .op("append_batch", seqs=[0], tokens=[7, 8], args=what).step([1, 0], [8, 7]).free(0, 1).reclaim()
        .case("step/unequal-lists", "STEP-001", 8, 2, stands_for=("POOL-001", "TABLE-001"),
            note="sequences and tokens are zipped, so the longer list is cut in silence")
    )
    rows = list(range(40))
    h = History()
    for i in rows:
        h.add(i, tokens(1 + i % 4, 10 * i + 1))
    yield (
        h.step(rows, [900 + i for i in rows]).step(rows[::-1], [950 + i for i in rows]).free(*rows)
        .reclaim()
        .case("step/forty", "STEP-001", 130, 2, stands_for=("TABLE-001", "POOL-001", "POOL-002"),
            note="a step of more sequences than a fixed buffer holds")
    )
    h = History()
    for i in range(100):
        h.add(i, tokens(1 + i % 3, 10 * i + 1))
    yield (
        h.append(0, 9).append(70, 9).append(99, 9).free(*range(100)).reclaim()
        .case("table/a-hundred-alive", ("TABLE-002", "POOL-002"), 210, 2,
            note="more live sequences than a fixed table has rows: one gets the blocks of another")
    )


def _batches() -> Iterator[Case]:
    yield (
        History().add(1, tokens(64)).add(2, tokens(48, 100)).add(3, tokens(80, 200)).batch(1, 2, 3)
        .op("csr", seqs=[1, 2, 3]).free(1, 2, 3)
        .case("batch/chapter", ("BATCH-001", "BATCH-005"), 16, 16,
            note="chapter 3.2.2: tables of 4, 3 and 5 blocks give (3, 5), padded; tokens are not block counts")
    )
    h = (
        History().add(0, tokens(3)).add(1, tokens(6, 20)).add(2, tokens(1, 40)).batch(0, 1, 2)
        .batch(2, 0)
    )
    yield (
        h.batch(1).batch(2, 1, 0).batch(0, 0, 2).batch().free(0, 1, 2)
        .case("batch/any-order", ("BATCH-003", "BATCH-001"), 8, 2,
            note="subsets, another order, repeats, nothing")
    )
    h = History()
    for i in range(40):
        h.add(i, tokens(1 + i % 5, 10 * i + 1))
    yield (
        h.batch(*range(40)).batch(*range(39, -1, -1)).free(*range(40))
        .case("batch/forty-rows", ("BATCH-001", "BATCH-003"), 90, 2, stands_for=("BATCH-004",),
            note="more rows than a fixed buffer holds: the last ones repeat the first")
    )
    yield (
        History().add(0, tokens(8)).add(1, tokens(3, 50)).batch(0, 1).free(0).batch(1)
        .add(2, tokens(1, 70)).batch(1, 2).batch(2, 1).append(2, 9).append(2, 10).batch(1, 2).free(1, 2)
        .case("batch/row-used-again", "BATCH-002", 10, 2,
            note="a row keeps the tail of its former owner")
    )
    yield (
        History().add(0, tokens(9)).batch(0).truncate(0, 3).batch(0).append(0, 8).append(0, 9).batch(0)
        .add(1, tokens(2, 50)).batch(0, 1).free(0, 1)
        .case("batch/row-shrinks", "BATCH-002", 10, 2, needs=("truncate",), stands_for=("BATCH-001",))
    )
    yield (
        History().add(0, tokens(3)).batch(0).append(0, 8).append(0, 9).append(0, 10).batch(0).fork(0, 1)
        .append(0, 7).append(1, 6).batch(0, 1).append(1, 6).append(1, 6).batch(1, 0).free(0, 1)
        .case("batch/no-update-lost", "BATCH-004", 12, 2, stands_for=("BATCH-001",),
            note="entries taken in a step whose batch was never asked for must still arrive")
    )
    yield (
        History().add(0, tokens(3)).add(1, tokens(5, 20)).batch(0, 1).free(0).add(0, tokens(7, 50))
        .batch(0, 1).free(1).add(1, tokens(2, 70)).batch(0, 1).batch(1).free(0, 1)
        .case("batch/resumed-is-replaced", "BATCH-004", 10, 2, stands_for=("BATCH-001", "BATCH-002"),
            note="an id that comes back has the new table, not the old one with the new appended")
    )
    yield (
        History().add(0, tokens(5)).op("swap_out", seq=0).add(1, tokens(3, 40)).batch(1)
        .op("swap_in", seq=0).batch(0, 1).append(0, 9).batch(1, 0).free(0, 1)
        .case("batch/after-swap", "BATCH-004", 8, 2, stands_for=("BATCH-001", "BATCH-002"))
    )
    yield (
        History().add(0, tokens(4)).add(1, tokens(5, 20)).add(2, tokens(2, 40))
        .op("csr", seqs=[0, 1, 2]).op("csr", seqs=[2, 0]).append(0, 9).op("csr", seqs=[0, 0])
        .free(0, 1, 2)
        .case("batch/ragged", "BATCH-005", 10, 2, note="a full last block has block_size tokens, not 0")
    )
    h = History()
    for i in range(40):
        h.add(i, tokens(1 + i % 5, 10 * i + 1))
    yield (
        h.op("csr", seqs=range(40)).op("csr", seqs=range(39, -1, -1)).free(*range(40))
        .case("batch/ragged-forty", "BATCH-005", 90, 2, note="more rows than a fixed buffer holds")
    )


def _slots() -> Iterator[Case]:
    for size in (2, 4):
        h = History().add(0, tokens(3)).add(1, tokens(3, 30)).free(0).add(2, tokens(size, 50))
        for k in range(2 * size):
            h.append(1, 70 + k).append(2, 90 + k)
        (
            h.op("slots", seq=1, lo=0, hi=3 + 2 * size).op("slots", seq=2, lo=1, hi=3 * size)
            .op("slots", seq=2, lo=size, hi=size)
        )
        yield (
            h.free(1, 2)
            .case(f"slot/lookup-{size}", "SLOT-001", 16, size,
                note="slots are looked up in the table, never counted on")
        )
    yield (
        History().add(0, tokens(3))
        .op("slots", seq=0, lo=0, hi=5, args={"bad": "a position with no block"})
        .op("slots", seq=0, lo=4, hi=5, args={"bad": "a position with no block"})
        .op("slots", seq=0, lo=-1, hi=1, args={"bad": "a negative position"}).free(0)
        .case("table/no-clamp", "TABLE-004", 8, 2,
            note="a position past the end reads the last block again")
    )


def _sizes() -> Iterator[Case]:
    chapter = {"layers": 1, "kv_heads": 32, "head_dim": 128, "dtype_bytes": 2}
    yield (
        History()
        .op("sizing", args={"memory": 24 * GIB, "share": 0.8, "reserved": 0, **chapter},
            expect={"value": 78643})
        .op("sizing", args={"memory": 24 * GIB, "share": 0.8, "reserved": 0, **chapter, "layers": 32},
            expect={"value": 2457})
        .op("sizing", args={"memory": 24 * GIB, "share": 0.8, "reserved": 0, **chapter, "kv_heads": 8},
            expect={"value": 314572})
        .op("sizing",
            args={"memory": 24 * GIB, "share": 0.9, "reserved": 16 * GIB, **chapter, "layers": 32},
            expect={"value": 716})
        .op("sizing", args={"memory": 262144, "share": 1.0, "reserved": 0, **chapter},
            expect={"value": 1})
        .op("sizing", args={"memory": 262143, "share": 1.0, "reserved": 0, **chapter},
            expect={"outcome": "Refused"})
        .op("sizing", args={"memory": GIB, "share": 0.5, "reserved": GIB, **chapter},
            expect={"outcome": "Refused"})
        .case("size/blocks-from-memory", "SIZE-001", 4, 16,
            note="chapter 3.2.1: 24 GiB * 0.8 // 262144 is 78,643; layers, heads and weights count")
    )


def _wire() -> Iterator[Case]:
    h = (
        History().add(0, tokens(5)).add(1, tokens(2, 20)).add(7, tokens(9, 40))
        .op("codec", seqs=[0, 1, 7]).op("codec", seqs=[7])
    )
    h.op("codec", seqs=[])
    for at in (0.0, 0.2, 0.4, 0.6, 0.8, 0.99):
        h.op("codec", seqs=[0, 1, 7], args={"bad": f"a byte changed at {at:.0%}", "flip": at})
        h.op("codec", seqs=[0, 1, 7], args={"bad": f"bytes cut at {at:.0%}", "cut": at})
    yield (
        h.free(0, 1, 7)
        .case("wire/tables", "WIRE-001", 12, 2, note="a short row or a changed byte is accepted")
    )
    yield (
        History().add(0, tokens(5)).append(0, 8, commit=False).op("wire", seq=0).commit(0)
        .append(0, 9, commit=False).op("wire", seq=0).commit(0).add(1, tokens(5), commit=False)
        .op("wire", seq=1).commit(1).add(2, tokens(5, 50), commit=False).op("wire", seq=2)
        .commit(2, 1).op("wire", seq=2).commit(2).free(0, 1, 2)
        .case("wire/next-tokens", "BATCH-004", 10, 2, needs=("wire",),
            note="a resumed sequence sends its last token only")
    )


def _probes() -> Iterator[Case]:
    for size in (2, 4):
        h = History().add(0, tokens(2 * size)).add(1, tokens(2 * size - 1, 50))
        for k in range(3):
            h.append(0, 80 + k).append(1, 90 + k)
        yield (
            h.free(1).append(0, 8).free(0)
            .case(f"probe/append-at-the-edge-{size}", "PROBE-001", 4, size, needs=("probe",),
                note="can_append looks at len % block_size == 0 where append looks at 1, or the reverse")
        )
    yield (
        History().add(0, tokens(6)).free(0).add(1, tokens(8, 40)).free(1)
        .add(2, tokens(9, 60)).add(3, tokens(7)).add(4, tokens(2, 90)).free(3)
        .case("probe/admission-that-evicts", "PROBE-001", 4, 2, needs=("probe",),
            note="can_add counts the free list and not the evictable blocks, or the hit blocks twice")
    )
    yield (
        History().add(0, tokens(3)).fork(0, 1).append(0, 8).free(1).append(0, 8)
        .free(0)
        .case("probe/append-that-copies", "PROBE-001", 2, 2, needs=("probe",),
            note="can_append forgets the block for a copy")
    )

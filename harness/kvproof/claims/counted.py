"""Claims about numbers of blocks, tokens and bytes: counted on the reference, or plain arithmetic."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from kvproof.claims.claim import Claim, judged
from kvproof.contract import OutOfBlocks, Refused
from kvproof.subjects import find

SIZE = 16
"""The chapter's block size."""
LLAMA = {"layers": 32, "head_dim": 128, "dtype_bytes": 2}
"""The model of its memory figures; 32 KV heads, or 8 with grouped heads."""


def counted() -> Iterator[Claim]:
    """All of them, in the order of the chapter."""
    yield from _tables()
    yield from _pool_size()
    yield from _tensors()
    yield from _scheduler()
    yield from _ranks()
    yield from _prefix()
    yield from _memory()
    yield from _shared_memory()


def _manager(blocks: int) -> Any:
    return find("reference").factory()(blocks, SIZE)


def _entered(blocks: int, prompts: dict[int, Sequence[int]]) -> Any:
    manager = _manager(blocks)
    for seq, tokens in prompts.items():
        manager.add(seq, tokens)
        manager.commit(seq, len(tokens))
    return manager


def _blocks(tokens: int) -> int:
    return -(-tokens // SIZE)


def _as_printed(table: int, new: int) -> int:
    """Blocks of a table after `new` more tokens, by the chapter's code: it takes every block for full."""
    return _blocks(table * SIZE + new)


def _tables() -> Iterator[Claim]:
    manager = _entered(64, {1: range(500)})
    first = len(manager.table(1))
    yield judged("3.2.1", "500 tokens take 32 blocks of 16", "32", f"{first}, reference", first == 32)
    manager.append(1, list(range(200)))
    more = len(manager.table(1)) - first
    yield judged("3.2.1", "200 more take 12 (the comment)", "12", f"{more}, reference", more == 12)
    printed = _as_printed(first, 200) - first
    found = f"{printed}: it counts len(table) * block_size tokens"
    yield judged("3.2.1", "200 more take 12 (the code)", "12", found, printed == 12)

    manager = _entered(64, {1: range(500)})
    manager.append(1, [7])
    taken, printed = len(manager.table(1)) - first, _as_printed(first, 1) - first
    found = f"one more token in a block with room: reference {taken}, the code {printed}"
    yield judged("3.2.1", "no more pages than tokens need", "0", found, printed == 0)

    manager = _entered(6, {1: range(16), 2: range(100, 132)})
    before = manager.free_blocks()
    with contextlib.suppress(OutOfBlocks):
        manager.append(1, list(range(80)))
    kept = before - manager.free_blocks()
    found = f"blocks kept after 5 were asked and {before} were free: reference {kept}, the code {before}"
    yield judged("3.2.1", "an append that fails changes nothing", "(silent)", found, False)


def _pool_size() -> Iterator[Claim]:
    memory, shape = 24 * 2**30, {"head_dim": 128, "dtype_bytes": 2}
    manager = _manager(4)
    found = manager.blocks_for(memory, 0.8, 0, layers=1, kv_heads=32, **shape)
    size = 2 * SIZE * 32 * 128 * 2
    text = f"{found:,}, reference; 61,440 blocks are {61_440 * size / 2**30:g} GiB"
    yield judged("3.2.1", "80 % of 24 GiB are some 61,440 blocks", "61,440", text, found == 61_440)
    whole = manager.blocks_for(memory, 0.8, 0, layers=32, kv_heads=32, **shape)
    grouped = manager.blocks_for(memory, 0.8, 0, layers=32, kv_heads=8, **shape)
    text = (
        f"32 layers of 32 KV heads: {whole:,}; of 8: {grouped:,}; both before weights and activations, which "
        "it leaves out too"
    )
    yield judged("3.2.1", "262,144 bytes a block are all of its KV", "61,440", text, False)
    kind = type((24 * 1024**3 * 0.8) // (16 * 2 * 32 * 128 * 2)).__name__
    text = f"a {kind}: range() of it is a TypeError" if kind == "float" else kind
    yield judged("3.2.1", "the demo makes its free list of that number", "an int", text, kind == "int")


def _tensors() -> Iterator[Claim]:
    manager = _entered(64, {1: range(64), 2: range(100, 148), 3: range(200, 280)})
    rows, columns = manager.batch([1, 2, 3])[0].shape
    text = f"its demo has {rows} rows, {columns} columns, reference: it is the columns"
    yield judged("3.2.2", "max_num_blocks_per_seq is the number of rows", "5 rows", text, rows == 5)
    flat = len(manager.csr([1, 2, 3])[1])
    text = f"{flat} entries and offsets in that form; its code builds the padded one, {rows * columns}"
    yield judged("3.2.2", "tables are concatenated into a 1-D tensor", "1-D", text, False)
    _, blocks, tokens = _entered(64, {1: range(49), 2: range(100, 164)}).batch([1, 2])
    text = f"{blocks.tolist()} for {tokens.tolist()} tokens: it cannot mask the last block"
    yield judged("3.2.2", "the kernel gets lengths in blocks", "enough", text, blocks[0] != blocks[1])
    last = 78_643 * SIZE * 32 * 128 - 1
    text = f"the last element of its own pool with its 32 heads is {last:,}; int ends at {2**31 - 1:,}"
    yield judged("3.2.2", "the address fits 32-bit products", "int", text, last < 2**31)
    text = "one address for all 32 heads of a token: block and offset are multiplied by head_dim alone"
    yield judged("3.2.2", "the address is that of a key", "1 a head", text, False)
    text = "key_idx = threadIdx.y ends at 1,023, CUDA's largest block; its lengths go to 65,536"
    yield judged("3.2.2", "a thread for each key of the sequence", "65,536", text, False)


def _scheduler() -> Iterator[Claim]:
    scheduler = find("reference:make_scheduler").factory()(20, SIZE, 8, 1024)
    for rid, tokens in ((1, 100), (2, 200), (3, 150)):
        scheduler.submit(rid, list(range(rid * 1000, rid * 1000 + tokens)), 1)
    tables = {rid: table for rid, _, _, table in scheduler.plan()}
    admitted = {rid: len(table) for rid, table in tables.items()}
    text = f"request: blocks {admitted}, reference"
    yield judged(
        "3.2.3", "of 100, 200, 150 tokens in 20 blocks two enter", "7 + 13", text, admitted == {1: 7, 2: 13}
    )
    try:
        scheduler.submit(4, list(range(400)), 1)
        text = "it waits, reference"
    except Refused:
        text = "refused at once, reference; by the code it waits for ever"
    yield judged("3.2.3", "400 tokens for 20 blocks wait for room", "waits", text, "waits, ref" in text)


def _ranks() -> Iterator[Claim]:
    tables = [_entered(50, {1: range(256)}).table(1) for _ in range(4)]
    counts = sorted({len(t) for t in tables})
    yield judged("3.2.4", "256 tokens take 16 blocks on each of 4 GPUs", "16", f"{counts}", counts == [16])
    free = [list(range(50)) for _ in range(4)]
    physical = {tuple(pool.pop() for _ in range(16)) for pool in free}
    text = f"{len(physical)} table on its 4 GPUs: equal free lists, popped alike"
    yield judged("3.2.4", "the demo shows different physical blocks", "4 tables", text, len(physical) == 4)


def _prefix() -> Iterator[Claim]:
    prompt, other = list(range(160)), [*range(120), *[999] * 40]
    manager = _entered(100, {1: prompt})
    before = manager.free_blocks()
    matched = manager.add(2, other)
    new = before - manager.free_blocks()
    text = f"{matched // SIZE} blocks, {matched} tokens, and {new} new ones, reference: full blocks only"
    yield judged("3.2.5", "prompts that share 120 of 160 tokens share pages", "shared", text, matched == 112)
    text = "0 of 7: nothing is ever put into its map, and BlockAllocator is not defined"
    yield judged("3.2.5", "the demo finds the shared pages", "shared", text, False)
    manager.commit(2, 160)
    again = manager.add(3, prompt)
    text = f"{again} of 160 tokens, reference: at least one must be computed to sample from"
    yield judged("3.2.5", "an equal prompt is matched to its end", "160", text, again == 160)

    first, second = list(range(16)), list(range(100, 116))
    manager = _entered(100, {1: [*first, *second, 1]})
    swapped = manager.add(2, [*second, *first, 1])
    pages = {hash(tuple(first)), hash(tuple(second))}
    wrong = sum(hash(tuple(page)) in pages for page in (second, first))
    text = f"pages A B cached, B A asked: its hash finds {wrong}, both with the KV of another history; " + (
        f"chained keys, reference: {swapped // SIZE}"
    )
    yield judged("3.2.5", "the hash of a page's tokens names its KV", "safe", text, wrong == 0)
    equal = hash((-1,)) == hash((-2,))
    text = f"hash((-1,)) == hash((-2,)) is {equal}; with str in it, it differs between processes"
    yield judged("3.2.5", "Python's hash() tells pages apart", "unique", text, not equal)
    text = f"{len(prompt) // SIZE} comparisons for 160 tokens; hashing still reads all {len(prompt)}"
    yield judged("3.2.5", "O(n / block_size) comparisons for O(n)", "10", text, len(prompt) // SIZE == 10)


def _memory() -> Iterator[Claim]:
    manager = _manager(64 * 1000)
    for seq in range(1000):
        manager.add(seq, [seq, *range(1000, 2023)])
        manager.commit(seq, 1024)
    table = manager.batch(list(range(1000)))[0]
    one = table[0].nbytes
    yield judged("3.2.6", "a table of 1,024 tokens is 256 bytes", "256", f"{one}, reference", one == 256)
    text = f"{table.nbytes:,} bytes, batch tensor of the reference"
    yield judged("3.2.6", "1,000 tables are 256 KB", "256 KB", text, table.nbytes == 256_000)
    shares = []
    for kv_heads in (32, 8):
        kv = 1024 * 2 * LLAMA["layers"] * kv_heads * LLAMA["head_dim"] * LLAMA["dtype_bytes"]
        shares.append(100 * one / kv)
    text = f"{shares[0]:.5f} % of the KV with 32 KV heads, {shares[1]:.4f} % with 8 (32 layers of 128, fp16)"
    yield judged("3.2.6", "tables add 0.01 to 0.1 % to the KV", "0.01-0.1 %", text, shares[1] >= 0.01)


def _shared_memory() -> Iterator[Claim]:
    entries = 48 * 1024 // 4
    text = f"{entries:,}, of {entries * SIZE:,} tokens"
    yield judged("3.2.7", "48 KB hold 12,288 entries", "12,288", text, entries == 12_288)
    share = min(min(1.0, entries / _blocks(n)) for n in (256, 1024, 4096, 16384, 65536))
    text = f"{share:.0%}; but 48 KB a block of threads leave room for 4 on an SM of 227 KB"
    yield judged("3.2.7", "tables of 256 to 65,536 tokens fit whole", "100 %", text, share == 1.0)

"""Prompts that weak block keys take for one another: PREFIX-008 and the guard behind it, PREFIX-016."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kvproof.histories.build import History
from kvproof.records import Case

NEEDS = ("prefix",)
AIMS = ("PREFIX-008", "PREFIX-016")
TOP = 2**31 - 1
"""The largest token id that the suite uses."""

Prompt = Sequence[int]

HASH_OF_TUPLES = (
    ((611178002, 1755844989), (1693630400, 5)),
    ((774747711, 1755844989), (1857200109, 5)),
    ((861425548, 1755844989), (1943877946, 5)),
)
"""Equal in CPython's 64-bit hash() of a tuple: of these two tokens, and behind a parent of 0 and of -1."""
CRC_32 = (((1005, 2006), (1838352686, 2004)), ((1005, 2006), (30156102, 2005)))
"""Equal in CRC-32, behind whatever stands before: as words of 4 bytes and of 8."""
ROLLING = tuple(
    ((1000, 20_000_000), (1001, 20_000_000 - m))
    for m in (1, 2, 31, 33, 37, 131, 256, 257, 65_536, 65_599, 1_000_003, 16_777_619)
)
"""Equal in h = h * m + token, whatever stood before."""
JOINED = (((1, 23), (12, 3)), ((0x0203, 1), (3, 0x0102)), ((7, 0), (0, 7)), ((70, 71), (71, 70)))
"""Equal when written without a border, and in whatever does not mind the order."""


def cases() -> Iterator[Case]:
    yield _apart("hash-of-a-tuple", HASH_OF_TUPLES, "Python's hash() of the tokens is trusted")
    yield _apart("crc-32", CRC_32, "a checksum of 32 bits is trusted")
    yield _apart("rolling-hash", ROLLING, "h = h * m + token is trusted")
    yield _apart("joined", JOINED, "the tokens are joined without a border, or their order is lost")
    yield from _bits()
    yield from _orders()
    yield _late()


def _apart(name: str, pairs: Sequence[tuple[Prompt, Prompt]], note: str) -> Case:
    """One of each pair is computed, the other is looked up; blocks of 2 tokens."""
    h = History()
    for number, (one, other) in enumerate(pairs):
        h.add(2 * number, [*one, 9]).free(2 * number).add(2 * number + 1, [*other, 9]).free(2 * number + 1)
    return _case(h, f"colliding/{name}", 4 * len(pairs) + 4, note)


def _bits() -> Iterator[Case]:
    """One bit of one token, over all bits that a token id may have."""
    for base, named in ((5, "small"), (TOP, "large")):
        for at in (0, 1):
            block = [base, base]
            h = History().add(0, [*block, 9]).free(0)
            for bit in range(31):
                changed = [*block]
                changed[at] ^= 1 << bit
                h.add(1 + bit, [*changed, 9]).free(1 + bit)
            yield _case(
                h, f"colliding/one-bit-of-{named}-token-{at}", 72, "some bits of a token id do not count",
                aims=("PREFIX-001", "PREFIX-016"),
            )  # fmt: skip


def _orders() -> Iterator[Case]:
    """The same blocks in other orders: what adds or xors them up cannot tell."""
    a, b, c = [11, 12], [13, 14], [15, 16]
    orders = ([*a, *b, *c], [*b, *a, *c], [*c, *a, *b], [*a, *a, *c], [*b, *b, *c], [*c, *a, *a], [*a, *c, *a])
    h = History()
    for seq, prompt in enumerate(orders):
        h.add(seq, [*prompt, 9]).free(seq)
    for seq, prompt in enumerate(orders, start=len(orders)):
        h.add(seq, [*prompt, 9]).free(seq)
    yield _case(h, "colliding/orders-of-blocks", 40, "keys of blocks are added or xored up",
        aims=("PREFIX-002", "PREFIX-016"))  # fmt: skip


def _late() -> Case:
    """1,024 tokens, of which one differs early or in the middle, before an equal end."""
    draw = random.Random(11)
    prompt = [draw.randrange(1, 30_000) for _ in range(1025)]
    h = History().add(0, prompt).free(0)
    for seq, at in enumerate((0, 17, 511, 700), start=1):
        h.add(seq, [*prompt[:at], 40_000, *prompt[at + 1 :]]).free(seq)
    for seq, at in enumerate((0, 17, 511, 700), start=5):
        h.add(seq, [*prompt[:at], 40_000, *prompt[at + 1 :]]).free(seq)
    return h.case(
        "prefix/colliding/far-behind", ("PREFIX-002", "PREFIX-016"), 520, 16, needs=NEEDS,
        note="behind some length only the last tokens count",
    )  # fmt: skip


def _case(h: History, name: str, blocks: int, note: str, aims: tuple[str, ...] = AIMS) -> Case:
    return h.case(f"prefix/{name}", aims, blocks, 2, needs=NEEDS, note=note)

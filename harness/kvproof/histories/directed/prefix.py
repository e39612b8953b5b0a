"""PREFIX: what may be matched, and what never."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kvproof.histories.build import History
from kvproof.histories.directed.pool import tokens
from kvproof.records import Case

PREFIX = ("prefix",)
WHOLE = ("prefix", "hits:whole")


def cases() -> Iterator[Case]:
    yield from _equal_history()
    yield from _contiguous()
    yield from _lengths()
    yield from _computed()
    yield from _keys()
    yield from _collisions()
    yield from _together()


def _equal_history() -> Iterator[Case]:
    for size in (2, 4):
        prompt = tokens(3 * size + 1)
        for at in range(3 * size):
            changed = [*prompt[:at], 77, *prompt[at + 1 :]]
            yield (
                History().add(0, prompt).free(0).add(1, changed).free(1).add(2, prompt).free(2)
                .case(f"prefix/differs-at-{at}-of-{3 * size + 1}-in-{size}", "PREFIX-001", 12, size,
                    needs=PREFIX,
                    note="the first differing token ends the hit at its block, wherever in the block it is")
            )
    yield (
        History().add(0, tokens(9)).add(1, tokens(9)).free(0).add(2, tokens(9)).free(1, 2)
        .add(3, tokens(9)).free(3)
        .case("prefix/control", "PREFIX-001", 12, 2, needs=PREFIX,
            note="equal history is reused, owner alive or gone")
    )
    h = History()
    for prompt in (tokens(8), [*tokens(7), 50], [50, *tokens(7)]):
        h.op("block_keys", tokens=prompt)
    for at in range(8):
        h.op("block_keys", tokens=[*tokens(8)[:at], 60, *tokens(8)[at + 1:]])
    yield (
        h.op("block_keys", tokens=tokens(8)).op("block_keys", tokens=[5, 6, 7, 8, 5, 6, 7, 8])
        .case("prefix/keys-of-every-token", ("PREFIX-001", "PREFIX-002"), 8, 4, needs=PREFIX,
            note="changing any token changes this key and all later ones")
    )
    x, y = tokens(4), tokens(4, 50)
    yield (
        History().add(0, [*x, *y, 9]).free(0).add(1, [*y, *x, 9]).free(1).add(2, [*x, *x, *y, 9])
        .free(2)
        .case("prefix/same-block-elsewhere", "PREFIX-002", 16, 4, needs=PREFIX,
            note="a block is known by its own tokens: Y+X reuses the blocks of X+Y")
    )
    yield (
        History().add(0, [1, 1, 5, 5, 9]).add(1, [2, 2, 5, 5, 9]).add(2, [2, 2, 5, 5, 5, 5, 9])
        .free(0, 1, 2)
        .case("prefix/same-tail-block", "PREFIX-002", 16, 2, needs=PREFIX,
            note="[2,2,5,5] shares the block computed for [1,1,5,5]")
    )
    yield (
        History().add(0, tokens(161)[:160], expect={"new_blocks": 10})
        .add(1, [*tokens(120), *[999] * 40], expect={"value": 112, "new_blocks": 3}).free(0, 1)
        .case("prefix/chapter-120-of-160", "PREFIX-012", 24, 16, needs=(*WHOLE, "publish:commit"),
            stands_for=("PREFIX-001",),
            note="chapter 3.2.5: 120 shared of 160 tokens are 7 blocks shared and 3 new")
    )
    yield (
        History().add(0, tokens(161)[:160]).free(0)
        .add(1, [*tokens(120), *[999] * 40], expect={"value": 112, "table_len": 10}).free(1)
        .case("prefix/chapter-120-of-160-freed", "PREFIX-012", 24, 16, needs=WHOLE,
            stands_for=("PREFIX-001",), note="the same for a cache that publishes when the owner is gone")
    )


    long = tokens(49)
    for at in (0, 3 * 4 + 1):
        yield (
            History().add(0, long).free(0).add(1, [*long[:at], 777, *long[at + 1:]]).free(1).add(2, long)
            .free(2).add(3, [*long[:at], 777, *long[at + 1:]]).free(3)
            .case(f"prefix/long-differs-at-{at}", "PREFIX-002", 40, 4, needs=PREFIX,
                note="12 blocks that differ in one early block: the key covers the last few blocks only")
        )
    yield (
        History().add(0, tokens(161)).free(0).add(1, tokens(161)).append(1, 9).free(1)
        .add(2, [*tokens(161), 8]).free(2)
        .case("prefix/long-hit", "PREFIX-001", 32, 8, needs=PREFIX,
            note="20 blocks of an equal prompt: the hit stops at some fixed number of blocks")
    )


def _contiguous() -> Iterator[Case]:
    a = tokens(5)
    # The head of A is evicted while its tail is held as the tail of nobody: FIFO and per-block orders do it.
    yield (
        History().add(0, a).free(0).add(1, tokens(2, 50)).free(1).add(2, tokens(3, 60)).free(2)
        .add(3, a).free(3).add(4, tokens(4, 70)).add(5, a).free(4, 5)
        .case("prefix/evicted-head", "PREFIX-003", 4, 2, needs=PREFIX,
            note="a miss at block 0, a hit at block 1 counted")
    )
    yield (
        History().add(0, a[:2]).free(0).add(1, a).free(1).add(2, tokens(3, 50)).free(2).add(3, [*a[:4], 90])
        .free(3)
        .case("prefix/head-freed-twice", "PREFIX-003", 3, 2, needs=PREFIX,
            note="a head keeps the place in the queue that it got before its tail was computed")
    )
    h = History().add(0, tokens(7)).free(0)
    for round_ in range(4):
        (
            h.add(1 + round_, tokens(1 + 2 * round_, 50 + 20 * round_)).free(1 + round_)
            .add(20 + round_, tokens(7)).free(20 + round_)
        )
    yield (
        h
        .case("prefix/holes-under-pressure", "PREFIX-003", 5, 2, needs=PREFIX,
            note="heads evicted before tails")
    )
    x, y = tokens(2), tokens(2, 50)
    yield (
        History().add(0, [*x, *y, 9]).free(0).add(1, [7, 7, *y, 9]).free(1).add(2, [*y, *x, *y, 9])
        .free(2).add(3, [*x, 8, 8, *y, 9]).free(3)
        .case("prefix/goes-on-after-a-miss", "PREFIX-003", 16, 2, needs=PREFIX,
            stands_for=("PREFIX-002", "PREFIX-001"),
            note="a later block that is known counts though the one before it is not")
    )


def _lengths() -> Iterator[Case]:
    for size in (1, 2, 4):
        for blocks in (1, 2, 3):
            yield (
                History().add(0, tokens(size * blocks)).free(0).add(1, tokens(size * blocks))
                .append(1, 9).free(1).add(2, tokens(size * blocks)).add(3, tokens(size * blocks))
                .free(3, 2)
                .case(f"prefix/whole-prompt-{blocks}x{size}", "PREFIX-004", 12, size, needs=PREFIX,
                    note="an equal prompt of whole blocks: one token at least is left to compute")
            )
    yield (
        History().add(0, [1, 2, 3]).add(1, [1, 2, 3]).append(0, 8).append(1, 9).free(0).append(1, 9)
        .free(1).add(2, [1, 2, 3, 8, 5]).free(2)
        .case("prefix/partial-tail", "PREFIX-005", 12, 4, needs=PREFIX,
            note="two equal prompts shorter than a block share it and both append")
    )
    yield (
        History().add(0, tokens(6)).free(0).add(1, tokens(6)).append(1, 9).free(1)
        .add(2, [*tokens(6), 7, 8, 9]).free(2)
        .case("prefix/partial-second-block", "PREFIX-005", 12, 4, needs=PREFIX,
            stands_for=("PREFIX-006",))
    )
    yield (
        History().add(0, tokens(4)).append(0, 5).append(0, 6).append(0, 7).append(0, 8).append(0, 9)
        .free(0).add(1, tokens(10)).free(1)
        .case("prefix/generated-blocks", ("PREFIX-001", "PREFIX-002"), 12, 4, needs=PREFIX,
            note="blocks filled by decode are matched by their whole history or not at all")
    )


def _computed() -> Iterator[Case]:
    yield (
        History().add(0, tokens(9), commit=False).add(1, tokens(9), commit=False).commit(0).commit(1)
        .add(2, tokens(9)).free(0, 1, 2)
        .case("prefix/twin-before-compute", "PREFIX-006", 20, 4, needs=PREFIX,
            note="a twin admitted before the first is computed hits blocks that hold nothing yet")
    )
    yield (
        History().add(0, tokens(13), commit=False).commit(0, 4).add(1, tokens(13), commit=False)
        .commit(0, 9).add(2, tokens(13), commit=False).commit(0).commit(1).commit(2).free(0, 1, 2)
        .case("prefix/twin-between-chunks", "PREFIX-006", 20, 4, needs=PREFIX,
            note="chunked prefill: only the chunks that are computed can be hit")
    )
    yield (
        History().add(0, tokens(9), commit=False).free(0).add(1, tokens(9)).free(1)
        .case("prefix/dropped-before-compute", "PREFIX-006", 12, 4, needs=PREFIX,
            note="the owner goes before it computed anything")
    )
    yield (
        History().add(0, tokens(3)).append(0, 4, commit=False).add(1, tokens(5)).commit(0).append(0, 5)
        .add(2, tokens(6)).free(0, 1, 2)
        .case("prefix/reserved-slot", "PREFIX-006", 12, 4, needs=PREFIX,
            note="published when reserved, not when computed")
    )
    drafts = [80, 81, 82]
    yield (
        History().add(0, tokens(3)).op("append", seq=0, tokens=drafts).truncate(0, 3).append(0, 4)
        .append(0, 5).add(1, [*tokens(3), *drafts, 9]).free(0).add(2, [*tokens(3), *drafts, 9])
        .add(3, tokens(6)).free(1, 2, 3)
        .case("prefix/rejected-drafts", "PREFIX-013", 16, 2, needs=("prefix", "defer"),
            stands_for=("PREFIX-001", "PREFIX-002", "PREFIX-006", "EVICT-002"),
            note="draft tokens were published before they were verified")
    )
    yield (
        History().add(0, tokens(4)).op("append", seq=0, tokens=drafts).truncate(0, 4)
        .add(1, [*tokens(4), *drafts]).append(0, 5).free(0, 1)
        .case("prefix/rejected-draft-block", "PREFIX-013", 16, 2, needs=("prefix", "defer"),
            note="a whole block of drafts was rejected and is asked for at once")
    )
    yield (
        History().add(0, tokens(3)).op("append", seq=0, tokens=drafts).commit(0, 4).truncate(0, 4)
        .append(0, 55).append(0, 56).add(1, [*tokens(3), *drafts, 9]).free(0, 1)
        .add(2, [*tokens(3), *drafts, 9]).free(2)
        .case("prefix/one-draft-accepted", "PREFIX-013", 16, 4, needs=("prefix", "defer"),
            stands_for=("PREFIX-001", "PREFIX-002", "PREFIX-006", "EVICT-002"))
    )
    yield (
        History().add(0, tokens(9)).free(0).op("reset")
        .add(1, tokens(9)).free(1).add(2, tokens(9)).free(2)
        .case("prefix/reset", "PREFIX-014", 12, 2, needs=("prefix", "reset"),
            stands_for=("POOL-001", "EVICT-002", "PREFIX-001"), note="the map is left behind")
    )
    yield (
        History().add(0, tokens(3)).op("reset").append(0, 4).append(0, 5).add(1, tokens(6)).free(0, 1)
        .add(2, tokens(6)).free(2)
        .case("prefix/computed-before-the-reset", "PREFIX-014", 12, 2, needs=("prefix", "reset"),
            note="a sequence from before the reset publishes KV of old weights behind it")
    )
    yield (
        History().add(0, tokens(9)).op("reset").add(1, tokens(9)).append(0, 7).free(0).add(2, tokens(9))
        .free(1, 2).reclaim()
        .case("prefix/reset-while-running", "PREFIX-014", 20, 2, needs=("prefix", "reset"),
            stands_for=("POOL-001", "POOL-002", "EVICT-002", "PREFIX-001"))
    )


def _keys() -> Iterator[Case]:
    p = tokens(9)
    pairs = {
        "salt": ({"salt": "a"}, {"salt": "b"}),
        "salt-or-none": ({"salt": "a"}, {}),
        "empty-is-not-absent": ({"salt": ""}, {}),
        "adapter": ({"adapter": "x"}, {"adapter": "y"}),
        "adapter-empty": ({"adapter": ""}, {}),
        "salt-is-not-adapter": ({"salt": "x"}, {"adapter": "x"}),
        "joined-strings": ({"salt": "ab", "adapter": "c"}, {"salt": "a", "adapter": "bc"}),
        "swapped-strings": ({"salt": "a", "adapter": "b"}, {"salt": "b", "adapter": "a"}),
        "media": ({"media": [[4, 4, "cat"]]}, {"media": [[4, 4, "dog"]]}),
        "media-or-none": ({"media": [[0, 4, "cat"]]}, {}),
        "media-is-not-salt": ({"media": [[0, 9, "x"]]}, {"salt": "x"}),
        "media-offset": ({"media": [[4, 4, "cat"]]}, {"media": [[5, 4, "cat"]]}),
        "media-length": ({"media": [[4, 4, "cat"]]}, {"media": [[4, 2, "cat"]]}),
        "media-second": ({"media": [[0, 2, "cat"], [4, 4, "dog"]]}, {"media": [[0, 2, "cat"]]}),
        "media-second-other": (
            {"media": [[0, 2, "cat"], [4, 4, "dog"]]}, {"media": [[0, 2, "cat"], [4, 4, "fox"]]}),
        "salt-beside-adapter": ({"salt": "a", "adapter": "x"}, {"salt": "b", "adapter": "x"}),
        "adapter-beside-salt": ({"salt": "a", "adapter": "x"}, {"salt": "a", "adapter": "y"}),
    }
    for name, (one, other) in pairs.items():
        h = (
            History().add(0, p, keys=one).free(0).add(1, p, keys=other).free(1).add(2, p, keys=one)
            .free(2)
        )
        h.add(3, p, keys=other).free(3)
        yield (
            h
            .case(f"prefix/key-{name}", "PREFIX-007", 24, 4, needs=("prefix", "keys"),
                note="another value of the key: no reuse; the same value: reuse")
        )
        h = History().op("block_keys", tokens=p, keys=one).op("block_keys", tokens=p, keys=other)
        yield (
            h.op("block_keys", tokens=p, keys=one)
            .case(f"prefix/block-key-{name}", ("PREFIX-007", "PREFIX-009"), 8, 4,
                needs=("prefix", "keys"))
        )
    yield (
        History().add(0, p, keys={"media": [[4, 4, "cat"]]}).free(0)
        .add(1, p, keys={"media": [[4, 4, "dog"]]}, expect={"value": 4}).free(1)
        .case("prefix/before-the-media", "PREFIX-007", 16, 4, needs=("prefix", "keys"),
            note="the block in front of the item is shared, the item's own is not")
    )
    yield (
        History().add(0, p, keys={"salt": "a"}).free(0).add(0, p).free(0)
        .add(0, p, keys={"adapter": "x"}).free(0).add(0, p, keys={"salt": "a"}).free(0)
        .case("prefix/keys-of-a-former-life", "PREFIX-007", 24, 4, needs=("prefix", "keys"),
            note="the keys of a freed id stick to its next life")
    )


def _collisions() -> Iterator[Case]:
    draw = random.Random(5)
    h = History().add(0, [draw.randrange(1000, 2 ** 30) for _ in range(3001)]).free(0)
    for seq in range(1, 250):
        h.add(seq, [draw.randrange(1000, 2 ** 30) for _ in range(3)]).free(seq)
    yield (
        h
        .case("prefix/many-different-blocks", "PREFIX-008", 2000, 2, needs=PREFIX,
            stands_for=("PREFIX-001", "PREFIX-002"),
            note="250 first blocks are looked up among 1,500 and more: a 16-bit key collides some six times")
    )
    yield (
        History().add(0, [-1 % 2 ** 31, 3, 5, 9]).free(0).add(1, [2 ** 31 - 2, 3, 5, 9]).free(1)
        .add(2, [1, 2, 2 ** 16 + 1, 4, 9]).free(2).add(3, [1, 2, 1, 4, 9]).free(3)
        .add(4, [0, 0, 0, 0, 9]).free(4).add(5, [0, 0, 0, 9]).free(5).add(6, [256, 0, 1, 0, 9]).free(6)
        .add(7, [0, 1, 0, 1, 9]).free(7)
        .case("prefix/awkward-tokens", "PREFIX-008", 40, 2, needs=PREFIX,
            stands_for=("PREFIX-001", "PREFIX-002"),
            note="zeros, and values that are equal in their low 16 or 8 bits")
    )


def _together() -> Iterator[Case]:
    yield (
        History().add(0, tokens(5)).free(0).add(1, tokens(2, 50))
        .add(2, [*tokens(5), 60, 61], expect={"outcome": "ok"}).append(2, 9).free(1, 2)
        .case("prefix/matched-held-first", "PREFIX-010", 5, 2, needs=PREFIX,
            stands_for=("POOL-002", "TABLE-002", "EVICT-001", "EVICT-002"),
            note="new blocks are popped before the matched ones are taken out of the evictable queue")
    )
    yield (
        History().add(0, tokens(6)).free(0).add(1, [*tokens(6), *tokens(2, 70)]).free(1)
        .add(2, [*tokens(4), *tokens(4, 90)]).free(2)
        .case("prefix/matched-held-first-full-cache", "PREFIX-010", 4, 2, needs=PREFIX,
            stands_for=("POOL-002", "TABLE-002", "EVICT-001", "EVICT-002"))
    )
    for first, second in ((0, 1), (1, 0)):
        h = (
            History().add(0, tokens(4), commit=False).add(1, tokens(4), commit=False).commit(0)
            .commit(1)
        )
        (
            h.append(0, 8).append(1, 9).free(first).add(2, tokens(5)).free(2).free(second)
            .add(3, tokens(5)).free(3).reclaim()
        )
        yield (
            h.add(4, tokens(5)).free(4).reclaim()
            .case(f"prefix/twins-freed-{first}-first", "PREFIX-011", 8, 2, needs=("prefix", "defer"),
                stands_for=("POOL-001", "POOL-002", "POOL-003", "POOL-008", "PREFIX-001", "EVICT-002", "SHARE-007"),
                note="equal prompts at once: the second release overwrites the first, a block is lost")
        )
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        h = History().add(0, tokens(4)).add(1, tokens(4)).add(2, tokens(4)).free(*order).reclaim()
        yield (
            h.add(3, tokens(4)).free(3).reclaim()
            .case("prefix/equal-prompts-freed-" + "".join(map(str, order)), "PREFIX-011", 8, 2,
                needs=PREFIX, stands_for=("POOL-001", "POOL-002", "POOL-003", "POOL-008", "EVICT-002"),
                note="each copy of the last block must come back")
        )

"""TP: groups of ranks with unequal pools, faults of messages, and ranks that end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from kvproof.histories.build import History
from kvproof.records import Case

Ops = Sequence[tuple[Any, ...]]


class Ranks(History):
    """Operations on a group."""

    def step(self, *operations: Any, faults: Sequence[dict[str, Any]] = (), **args: Any) -> Ranks:
        asked: dict[str, Any] = {"operations": [list(o) for o in operations], **args}
        if faults:
            asked["faults"] = list(faults)
        self.op("step", args=asked)
        return self

    def form(self) -> Ranks:
        self.op("form")
        return self

    def on(self, op: str, rank: int, **args: Any) -> Ranks:
        """resume_rank, refuse, evict."""
        self.op(op, args={"rank": rank, **args})
        return self

    def ranks(self, name: str, aim: str | Sequence[str], pools: Sequence[int], block_size: int, *, note: str = "",
              stands_for: Sequence[str] = (), seed: int | None = None) -> Case:
        aims = (aim,) if isinstance(aim, str) else tuple(aim)
        needs = {"evict": "local_evict", "refuse": "refusing"}
        return Case(
            id=name, aim=tuple(f"KVP-{a}" for a in aims), num_blocks=min(pools), block_size=block_size, pools=tuple(pools),
            needs=tuple(sorted({needs[op.op] for op in self.operations if op.op in needs})), history=tuple(self.operations),
            stands_for=tuple(f"KVP-{s}" for s in stands_for), note=note, seed=seed,
        )


def prompt(seq: int, length: int) -> list[int]:
    """Tokens of its own."""
    return [10 * (seq + 1) + i % 7 for i in range(length)]


def add(seq: int, length: int) -> tuple[Any, ...]:
    return ("add", seq, prompt(seq, length))


def decode(*seqs: int, token: int = 1) -> list[tuple[Any, ...]]:
    return [("append", seq, [token]) for seq in seqs]


def message(number: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"message": number, "kind": kind, **fields}


def ends(rank: int, events: int, kind: str = "kill") -> dict[str, Any]:
    return {"rank": rank, "kind": kind, "events": events}


def cases() -> Iterator[Case]:
    yield from _capacity()
    yield from _plain_steps()
    yield from _all_or_none()
    yield from _messages()
    yield from _deaths()
    yield from _hits()
    yield from _bytes()
    yield from _told()


def _capacity() -> Iterator[Case]:
    for name, pools, size in (("chapter", (50, 50, 50, 50), 16), ("one-short", (50, 50, 40, 50), 16), ("first-largest", (2111, 2055), 1),
                              ("first-smallest", (5, 9), 4), ("last-smallest", (9, 7, 5), 4)):
        h = Ranks().step(add(1, 256) if min(pools) >= 16 else add(1, 4 * size))
        left = min(pools) - (16 if min(pools) >= 16 else 4)
        h.step(add(2, size * left)).step(add(3, 1)).step(("free", 2)).step(add(3, 1)).step(("free", 1), ("free", 3))
        yield h.ranks(f"tp/capacity-{name}", "TP-001", pools, size, note=f"Capacity {min(pools)} of pools {pools}: its last block is used, and none behind it.")


def _plain_steps() -> Iterator[Case]:
    h = Ranks().step(add(0, 5), add(1, 9)).step(*decode(0, 1)).step(*decode(0, 1)).step(*decode(1), ("free", 0))
    h.step(add(2, 6)).step(*decode(2, 1)).step(*decode(2, 1)).step(("free", 1), add(3, 11)).step(*decode(3, 2)).step(("free", 2), ("free", 3))
    for world in (1, 2, 3, 4, 8):
        yield h.ranks(f"tp/steps-{world}", "TP-002", (12,) * world, 4, note="Plain steps: digests and tables are equal, and every rank reads its history.")
    yield h.ranks("tp/steps-block-1", "TP-002", (40, 41, 43), 1)
    h = Ranks().step(add(0, 5)).step(*decode(0)).step(("preempt", 0)).step(add(1, 3)).step(("resume", 0)).step(*decode(0, 1)).step(*decode(0, 1))
    yield h.ranks("tp/resume", "TP-007", (6, 6), 4, note="A resumed sequence is computed again: prompt and generated tokens reach every rank.")
    h = Ranks().step(add(0, 9), add(1, 9)).step(*decode(0, 1)).step(("preempt", 1)).step(*decode(0)).step(add(2, 12)).step(("free", 0))
    h.step(("resume", 1), *decode(2)).step(*decode(1, 2)).step(("free", 1), ("free", 2))
    yield h.ranks("tp/resume-after-eviction", "TP-007", (8, 7, 8), 4)


def _all_or_none() -> Iterator[Case]:
    h = Ranks().step(add(0, 5)).step(add(1, 40)).step(*decode(0)).step(add(2, 8), add(3, 9)).step(add(2, 8)).step(*decode(0, 9))
    h.step(("append", 0, [])).step(("free", 9)).step(add(0, 3)).step(*decode(0, 0)).step(*decode(0, 2)).step(("resume", 0))
    yield h.ranks("tp/wrong-or-too-large", "TP-003", (5, 6), 4, note="A step that cannot be done changes nothing on any rank.")
    for rank in (1, 2):
        h = Ranks().step(add(0, 5)).on("refuse", rank).step(add(1, 5)).step(*decode(0)).step(add(1, 5)).on("refuse", rank)
        h.step(*decode(0, 1)).step(*decode(0, 1)).step(("free", 0), ("free", 1))
        yield h.ranks(f"tp/refusing-{rank}", "TP-003", (8, 8, 8), 4, note="One rank says no: no rank has the step, and the next one goes on.")


def _messages() -> Iterator[Case]:
    """Each message of a step in turn is lost, repeated, late, out of order or damaged."""
    kinds = [("drop", {}), ("repeat", {}), ("delay", {"ticks": 1}), ("delay", {"ticks": 3}), ("behind", {}), ("damage", {"at": 9}), ("damage", {"at": 25, "bit": 3}), ("damage", {"at": 37})]
    for kind, fields in kinds:
        label = kind + "".join(f"-{v}" for v in fields.values())
        h = Ranks().step(add(0, 5), add(1, 4))
        for number in range(8):
            h.step(*decode(0, 1), faults=[message(number, kind, **fields)]).form().form()
        h.step(*decode(1, 0)).step(("free", 0)).step(*decode(1))
        yield h.ranks(f"tp/message-{label}", "TP-004", (20, 20, 20), 4, note=f"Message after message: {kind}.")
    h = Ranks().step(add(0, 5))
    for number in range(4):
        h.step(*decode(0), faults=[message(number, "repeat"), message(number + 1, "delay", ticks=2)]).form().form()
        h.step(*decode(0)).step(*decode(0))
    yield h.ranks("tp/message-late-repeats", "TP-004", (20, 20), 4, note="A message of an earlier step comes again in a later one.")
    h = Ranks().step(add(0, 5)).step(*decode(0), faults=[message(n, "drop") for n in range(100)])
    h.form().form().step(*decode(0)).step(add(1, 3))
    yield h.ranks("tp/message-all-lost", "TP-004", (20, 20), 4, note="Nothing arrives any more: a named error.")


def _deaths() -> Iterator[Case]:
    for rank in (0, 1, 2):
        for events in range(9 if rank == 0 else 6):
            h = Ranks().step(add(0, 5), add(1, 4)).step(*decode(0, 1)).step(*decode(0, 1), add(2, 6), faults=[ends(rank, events)])
            h.form().form().step(*decode(0, 1)).step(add(3, 5)).step(*decode(0, 3)).step(("free", 0), ("free", 1))
            yield h.ranks(f"tp/killed-{rank}-{events}", ("TP-005", "TP-003"), (12, 13, 12), 4,
                          note="A rank ends between two of its messages; the others say so, agree on one epoch, and go on.")
    for rank in (1, 2):
        for events in range(5):
            h = Ranks().step(add(0, 5)).step(*decode(0), faults=[ends(rank, events, "stop")]).form().form().step(*decode(0))
            h.on("resume_rank", rank).step(*decode(0)).step(add(1, 5)).step(*decode(0, 1))
            yield h.ranks(f"tp/stopped-{rank}-{events}", ("TP-005", "TP-004"), (12, 13, 12), 4,
                          note="A rank stops and goes on later: what it then says is of a former group.")
    for events in range(6, 11):
        h = Ranks().step(add(0, 5)).step(*decode(0), faults=[ends(0, events), ends(1, 3, "stop")]).form().form().on("resume_rank", 1)
        h.form().form().step(*decode(0)).step(add(1, 5))
        yield h.ranks(f"tp/stopped-and-driver-killed-{events}", ("TP-003", "TP-005"), (12, 13, 12, 14), 4,
                      note="A rank stops with a step that only it has, and comes back when the others have gone on without it.")
    h = Ranks().step(add(0, 5)).step(*decode(0), faults=[ends(1, 2)]).step(*decode(0)).step(add(1, 4)).form().form().step(*decode(0))
    yield h.ranks("tp/step-before-forming", "TP-005", (12, 12, 12), 4, note="Until the group is formed again every step is an error.")
    h = Ranks().step(add(0, 5)).step(*decode(0), faults=[ends(0, 3)]).form().step(*decode(0), faults=[ends(1, 3)]).form().form()
    h.step(*decode(0)).step(add(1, 3)).step(("free", 0))
    yield h.ranks("tp/two-drivers-killed", ("TP-003", "TP-005"), (12, 12, 12, 12), 4, note="The next driver ends too.")
    h = Ranks().step(add(0, 9)).step(*decode(0)).step(("preempt", 0)).step(add(1, 3), faults=[ends(0, 1)]).form().form()
    h.step(("resume", 0)).step(*decode(0))
    yield h.ranks("tp/resume-under-a-new-driver", ("TP-007", "TP-003"), (12, 12, 12), 4, note="The new driver knows the tokens of a preempted sequence.")


def _hits() -> Iterator[Case]:
    shared = [7] * 16
    for rank in (0, 1):
        for count in (1, 2, 9):
            h = Ranks().step(("add", 0, [*shared, 1])).step(("free", 0)).on("evict", rank, count=count).step(("add", 1, [*shared, 2]))
            h.step(("add", 2, [*shared, 3])).step(*decode(1, 2)).step(("free", 1)).step(("add", 3, [*shared, 2, 1]))
            yield h.ranks(f"tp/hit-evicted-{rank}-{count}", "TP-006", (20, 20, 20), 4,
                          note="One rank has lost cached blocks: all use what every rank still has.")
    h = Ranks().step(("add", 0, [*shared, 1])).step(("preempt", 0)).on("evict", 1, count=2).step(("resume", 0)).step(*decode(0))
    yield h.ranks("tp/hit-at-resume", "TP-006", (20, 20), 4, note="The hit of a resumed sequence is agreed too.")
    h = Ranks().step(("add", 0, [*shared, 1])).step(("add", 1, [*shared, 2]), ("add", 2, [*shared, 2])).step(("free", 0), ("free", 1))
    h.step(("add", 3, [8] * 20)).step(("add", 4, [*shared, 5])).step(*decode(2, 3, 4))
    yield h.ranks("tp/hit-shared", "TP-002", (16, 16), 4, note="Shared blocks are shared by the same positions on every rank.")


def _bytes() -> Iterator[Case]:
    seqs = range(8)
    h = Ranks().step(*(add(s, 5) for s in seqs)).step(*decode(*seqs)).step(*decode(*seqs), tables="short")
    h.step(*(("append", s, [1] * 256) for s in seqs)).step(*decode(*seqs)).step(*decode(*seqs)).step(*decode(*seqs), tables="long")
    yield h.ranks("tp/bytes", "TP-008", (600, 600), 4, note="The same decode step with tables of 2 blocks and of 67.")


def _told() -> Iterator[Case]:
    draw, seqs = random.Random(9), range(150)
    h = Ranks().step(add(0, 5)).step(*decode(0)).step(add(1, 3)).step(("free", 0), *decode(1))
    for world in (2, 4):
        yield h.ranks(f"tp/heard-{world}", "TP-009", (9,) * world, 4, note="Steps without a fault: every rank hears of each, and the driver of every rank.")
    h = Ranks().step(add(0, 5)).step(*decode(0)).step(*decode(0), faults=[message(n, "noise") for n in range(100)])
    h.form().form().step(*decode(0)).step(add(1, 3))
    yield h.ranks("tp/noise", "TP-009", (20, 20, 20), 4, note="Noise comes in place of each message: nobody but the driver can know the step.")
    h = Ranks().step(*(("add", s, [1] * draw.randint(1, 64)) for s in seqs), drawn=64)
    h.step(*(("append", s, [1] * draw.randint(1, 64)) for s in seqs), drawn=64)
    yield h.ranks("tp/told", "TP-009", (20_000, 20_000), 1, note="Counts drawn from 64 each: what a rank is told takes 6 bits a sequence at least, however it is coded.")

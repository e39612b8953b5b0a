"""SCHED, PREEMPT, META: a scheduler under the load that breaks schedulers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvproof.histories.build import History
from kvproof.records import Case


class Load(History):
    """Operations on a scheduler."""

    def submit(self, rid: int, prompt: int | Sequence[int], max_new: int, **args: object) -> Load:
        """A prompt of so many tokens of its own, or these tokens."""
        own = [10 * (abs(rid) + 1) + i % 7 for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
        self.op("submit", seq=rid, tokens=own, args={"max_new": max_new, **args})
        return self

    @property
    def longest(self) -> int:
        """Positions of the largest request."""
        submits = [op for op in self.operations if op.op == "submit"]
        return max((len(op.tokens or ()) + (op.args or {})["max_new"] - 1 for op in submits), default=0)

    def steps(self, count: int, **args: object) -> Load:
        self.op("step", length=count, **({"args": args} if args else {}))
        return self

    def step_of(self, *rids: int) -> Load:
        """A step that must plan exactly these requests, where no blocks are kept back."""
        self.op("step", length=1, expect={"rows": list(rids)})
        return self

    def abort(self, rid: int, **fields: object) -> Load:
        self.op("abort", seq=rid, **fields)
        return self

    def drain(self) -> Load:
        self.op("drain")
        return self

    def load(self, name: str, aim: str | Sequence[str], shape: tuple[int, int, int, int], *, note: str = "",
             stands_for: Sequence[str] = (), needs: Sequence[str] = ()) -> Case:
        """shape: blocks, block size, sequences a step, tokens a step."""
        aims = (aim,) if isinstance(aim, str) else tuple(aim)
        blocks, size, seqs, tokens = shape
        needs = (*needs, "tight_budget") if tokens < seqs else needs
        needs = (*needs, "chunked") if aims and tokens < self.longest and "SCHED-004" not in aims else needs
        return Case(
            id=name, aim=tuple(f"KVP-{a}" for a in aims), needs=tuple(sorted(needs)), num_blocks=blocks, block_size=size,
            max_seqs=seqs, max_tokens=tokens, history=tuple(self.operations),
            stands_for=tuple(f"KVP-{s}" for s in stands_for), note=note,
        )


def cases() -> Iterator[Case]:
    yield from _budgets()
    yield from _whole_lives()
    yield from _never_fits()
    yield from _order()
    yield from _aborts()
    yield from _preemption()
    yield from _bad_submits()


def _budgets() -> Iterator[Case]:
    yield (
        Load().submit(0, 10, 3).submit(1, 10, 3).submit(2, 3, 3).drain()
        .load("sched/two-long-prompts", "SCHED-001", (20, 4, 4, 16), note="the second prompt does not fit the budget of the step")
    )
    yield (
        Load().submit(0, 30, 2).submit(1, 2, 4).drain()
        .load("sched/prompt-longer-than-the-budget", ("SCHED-001", "SCHED-003"), (20, 4, 4, 8),
              note="a prompt is cut into chunks; chunks follow each other without gap or overlap")
    )
    h = Load()
    for rid in range(6):
        h.submit(rid, 2, 4)
    yield h.drain().load("sched/more-requests-than-rows", ("SCHED-001", "SCHED-002"), (20, 4, 2, 16),
                         note="the budget of sequences")
    yield (
        Load().submit(0, 100, 1).submit(1, 200, 1).submit(2, 150, 1).step_of(0, 1).drain()
        .load("sched/chapter-20-blocks", "SCHED-008", (20, 16, 8, 1024), stands_for=("SCHED-001",), needs=("watermark:0",),
              note="chapter 3.2.3: 7 and 13 blocks are admitted, the third prompt waits")
    )


def _whole_lives() -> Iterator[Case]:
    for size in (2, 4):
        h = Load()
        for rid, (prompt, new) in enumerate(((1, 1), (size - 1, 2), (size, size), (size + 1, 2 * size), (3 * size, 1))):
            h.submit(rid, prompt, new)
        yield h.drain().load(f"sched/edges-{size}", ("SCHED-003", "SCHED-005", "SCHED-011"), (24, size, 8, 64),
                             note="prompts and outputs at block edges; one token more or less at the end")
    p = [1, 2, 3, 4, 5, 6, 7, 8]
    yield (
        Load().submit(0, p, 3).submit(1, p, 3).steps(2).submit(2, [*p, 9, 9], 3).drain().submit(3, p, 4).drain()
        .load("sched/equal-prompts", ("SCHED-003", "SCHED-011"), (16, 4, 4, 32),
              note="equal prompts in one batch, one while the owner runs, one after it: hits shift the ranges")
    )
    yield (
        Load().submit(0, p, 2).steps(1).submit(1, p, 2).steps(1).submit(2, p, 2).drain()
        .load("sched/twin-between-chunks", "SCHED-003", (16, 4, 3, 3), note="a twin is admitted while the first is part-computed")
    )


def _never_fits() -> Iterator[Case]:
    yield (
        Load().submit(0, 4, 3).submit(1, 40, 1).submit(2, 4, 3).drain()
        .load("sched/prompt-larger-than-the-pool", "SCHED-004", (6, 4, 4, 64), stands_for=("SCHED-005",),
              note="it waits for ever, stalls everybody behind it, or ends the engine")
    )
    yield (
        Load().submit(0, 1, 7).drain()
        .load("sched/grows-past-the-pool", "SCHED-004", (3, 2, 4, 16), stands_for=("SCHED-005",),
              note="prompt 1 and 7 new tokens in 3 blocks of 2: the prompt fits, the whole does not")
    )
    yield (
        Load().submit(0, 4, 40).submit(1, 4, 3).submit(2, 4, 3).drain()
        .load("sched/output-larger-than-the-pool", "SCHED-004", (6, 4, 4, 64), stands_for=("SCHED-005",))
    )
    yield (
        Load().submit(0, 21, 4).submit(1, 3, 2).drain()
        .load("sched/exactly-the-pool", "SCHED-005", (6, 4, 4, 64), note="24 positions in 24 slots are served")
    )
    yield (
        Load().submit(0, 3, 2).drain().submit(1, 25, 1).drain()
        .load("sched/one-token-past-the-pool", "SCHED-004", (6, 4, 4, 64), note="25 tokens in 24 slots are not served")
    )
    yield (
        Load().submit(0, 6, 3).submit(1, 6, 9).steps(1).submit(2, 2, 3).drain()
        .load("sched/more-rows-than-budget", ("SCHED-001", "SCHED-005"), (20, 4, 4, 2),
              note="who decodes takes turns where a step has fewer tokens than sequences run")
    )
    yield (
        Load().submit(0, 4, 3).submit(1, 30, 2).submit(2, 4, 3).drain()
        .load("sched/prompt-larger-than-a-step", "SCHED-004", (20, 4, 4, 16), stands_for=("SCHED-005",),
              note="an engine that computes a prompt in one step refuses it, one with chunks serves it")
    )
    h = Load()
    for blocks in (3, 4, 5, 6):
        h.submit(blocks, 4 * blocks - 1, 1).drain()
    yield h.load("sched/nearly-the-pool", "SCHED-005", (6, 4, 4, 64),
                 note="an empty pool admits whatever the watermark leaves room for, to the last block")
    yield (
        Load().submit(0, 4, 8).submit(1, 40, 1).submit(2, 4, 3).drain()
        .load("sched/too-large-behind-a-full-batch", "SCHED-004", (6, 4, 1, 64),
              note="it is refused within a step, not when its turn comes")
    )


def _order() -> Iterator[Case]:
    h = Load().submit(0, 12, 4).submit(1, 20, 2)
    for rid in range(2, 12):
        h.submit(rid, 2, 3).steps(1)
    yield h.drain().load("sched/small-ones-overtake", "SCHED-006", (8, 4, 4, 32), needs=("order",),
                         note="a stream of small requests passes the large head for ever")
    h = Load().submit(0, 6, 6)
    for rid in range(1, 5):
        h.submit(rid, 6, 6)
    yield h.steps(3).submit(9, 3, 2, priority=5).drain().load(
        "sched/priority", "SCHED-006", (8, 4, 2, 32), needs=("order:priority",),
        note="a request of higher priority waits behind lower ones")
    yield (
        Load().submit(0, 8, 12).submit(1, 8, 12).submit(2, 8, 12).drain()
        .load("sched/all-grow", ("SCHED-005", "PREEMPT-003"), (7, 4, 4, 32), note="more than fits grows at once: progress must go on")
    )
    h = Load()
    for rid in range(8):
        h.submit(rid, 5, 9)
    yield h.drain().load("sched/crowd", ("SCHED-005", "SCHED-002"), (8, 2, 8, 16), note="a crowd on a pool for one and a half")
    yield (
        Load().submit(0, 9, 2).submit(1, 9, 2).submit(2, 1, 1).submit(3, 1, 1).drain()
        .load("sched/head-needs-what-is-coming", "SCHED-005", (5, 2, 4, 8), note="the head waits for blocks that running ones return")
    )


def _aborts() -> Iterator[Case]:
    yield Load().submit(0, 6, 4).submit(1, 6, 4).abort(1).drain().load(
        "sched/abort-waiting", ("SCHED-007", "SCHED-011"), (8, 4, 4, 8))
    yield Load().submit(0, 14, 4).submit(1, 6, 4).steps(1).abort(0).drain().load(
        "sched/abort-part-computed", ("SCHED-007", "SCHED-011"), (12, 4, 4, 8), note="between two chunks of its prompt")
    yield Load().submit(0, 6, 6).submit(1, 6, 6).steps(3).abort(0).steps(1).drain().load(
        "sched/abort-running", ("SCHED-007", "SCHED-011"), (12, 4, 4, 32))
    yield Load().submit(0, 6, 6).submit(1, 6, 6).steps(2).steps(1, abort_between=0).drain().load(
        "sched/abort-between-plan-and-feed", ("SCHED-007", "SCHED-002"), (12, 4, 4, 32),
        note="the sampled token of an aborted request arrives")
    yield Load().submit(0, 6, 10).submit(1, 6, 10).steps(5).abort(1).drain().abort(0, args={"unknown": True}).load(
        "sched/abort-under-pressure", ("SCHED-007", "SCHED-011"), (5, 4, 4, 32), note="preempted, or about to be")
    yield Load().submit(0, 6, 2).drain().abort(0, args={"unknown": True}).submit(0, 6, 2).drain().load(
        "sched/abort-finished", "SCHED-007", (8, 4, 4, 32), note="aborted after its end; then the id is used again")


    yield Load().submit(0, 4, 4).steps(1).abort(0).submit(1, 4, 2).drain().load(
        "sched/abort-the-only-row", ("SCHED-005", "SCHED-007"), (8, 4, 1, 16), note="its place in the batch is free again")
    yield Load().submit(0, 8, 4).steps(1, abort_between=0).submit(1, 4, 2).drain().load(
        "sched/abort-a-whole-budget", ("SCHED-005", "SCHED-007"), (8, 4, 4, 8), note="tokens in flight are given back")
    p = [1, 2, 3, 4, 5, 6, 7, 8]
    yield Load().submit(0, p, 2).drain().submit(1, [*p, 9], 3).abort(1).drain().load(
        "sched/abort-before-a-hit", ("SCHED-007", "SCHED-011"), (8, 4, 4, 32),
        note="what a look-up holds on cached blocks ends with the request")
    yield Load().submit(0, 4, 12).submit(1, 4, 12).steps(6).abort(1).submit(1, 3, 4).drain().load(
        "sched/abort-the-victim-and-use-its-id", "SCHED-007", (8, 2, 4, 16), stands_for=("SCHED-005",),
        note="nothing of a preempted or swapped-out request is left behind")


def _preemption() -> Iterator[Case]:
    for size, blocks in ((2, 8), (4, 5)):
        yield (
            Load().submit(0, 3, 11).submit(1, 3, 11).drain()
            .load(f"preempt/two-grow-{size}", ("PREEMPT-001", "PREEMPT-002", "PREEMPT-003"), (blocks, size, 4, 32),
                  note="one of two must give way and come back with what it had generated")
        )
    yield (
        Load().submit(0, 4, 12).submit(1, 4, 12).drain()
        .load("preempt/resume-in-chunks", "PREEMPT-001", (9, 2, 3, 3), stands_for=("SCHED-003", "SCHED-005"),
              note="the resume is chunked and a chunk ends inside the generated part: nothing is sampled there")
    )
    yield (
        Load().submit(0, 6, 8).submit(1, 6, 8).steps(4).submit(2, 4, 2).submit(3, 4, 2).drain()
        .load("preempt/victim-before-later-arrivals", "PREEMPT-002", (7, 2, 4, 16), stands_for=("SCHED-006",),
              note="the victim goes to the end of the queue")
    )
    yield (
        Load().submit(0, 7, 9).submit(1, 7, 9).drain()
        .load("preempt/ping-pong", ("PREEMPT-002", "PREEMPT-003"), (10, 2, 4, 16), stands_for=("SCHED-005",),
              note="two victims preempt each other in turn")
    )
    h = Load()
    for rid in range(5):
        h.submit(rid, 4, 8)
    yield h.drain().load("preempt/many", ("PREEMPT-001", "PREEMPT-002", "PREEMPT-003"), (9, 2, 5, 12), stands_for=("SCHED-002",),
                         note="the victim may have been scheduled in this very step")
    p = [1, 2, 3, 4]
    yield (
        Load().submit(0, p, 10).submit(1, p, 10).submit(2, p, 6).drain()
        .load("preempt/shared-prefix", ("PREEMPT-001", "PREEMPT-002"), (8, 2, 4, 16),
              note="the victim's blocks are read by others, and it hits its own blocks on resume")
    )
    yield (
        Load().submit(0, 4, 12).submit(1, 4, 12).steps(6).abort(1).drain()
        .load("preempt/abort-the-victim", ("SCHED-007", "SCHED-011"), (8, 2, 4, 16), note="freed while preempted or swapped out")
    )


    yield (
        Load().submit(0, 2, 12).steps(2).submit(1, 20, 2).drain()
        .load("preempt/long-prompt-beside-decodes", ("PREEMPT-003", "SCHED-005"), (20, 4, 4, 5),
              note="the prompt starts again whenever others decode: no preemption is needed here at all")
    )


def _bad_submits() -> Iterator[Case]:
    wrong: tuple[tuple[str, int, int | list[int], int], ...] = (
        ("negative-id", -1, 3, 2), ("duplicate-id", 0, 5, 2), ("no-tokens", 5, [], 2), ("no-output", 5, 3, 0))
    for name, rid, prompt, max_new in wrong:
        yield (
            Load().submit(0, 5, 4).steps(1).submit(rid, prompt, max_new).drain()
            .load(f"sched/{name}", "SCHED-010", (12, 4, 4, 32), stands_for=("SCHED-002", "SCHED-005", "SCHED-011"))
        )

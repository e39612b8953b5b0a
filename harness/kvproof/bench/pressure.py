"""A trace served by a scheduler over tensor-parallel ranks, of which one is killed on the way.

The scheduler says who computes what; the ranks get its steps as operations and take blocks of their own.
Every rank has a KV memory, and what the model samples is a function of what the ranks read there, so a
wrong table on any rank changes the output. The scheduler caches nothing: the ranks do, and so need no
more blocks than it has counted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kvproof.bench.clock import quiet
from kvproof.bench.rank_groups import Ranks, Reads
from kvproof.bench.rank_memory import Expected, next_token
from kvproof.bench.rank_work import Operations
from kvproof.bench.subject import Wrong
from kvproof.bench.traces import Ids, Trace, prompt_tokens
from kvproof.contract import Refused
from kvproof.histories.play import POISON

COUNTS = (
    *("finished", "refused", "steps", "decisions", "preemptions", "resumes", "most_running"),
    *("prompt_tokens", "output_tokens", "cached_tokens", "reads"),
)


@dataclass(slots=True, eq=False)
class Going:
    """A request on its way. computed: positions that the ranks have; away: they have lost its blocks."""

    prompt: Ids
    wanted: int
    output: list[int] = field(default_factory=list)
    kv: Expected = field(default_factory=Expected)
    away: bool = False

    @property
    def computed(self) -> int:
        return self.kv.length

    def tokens(self, low: int, high: int) -> list[int]:
        size = len(self.prompt)
        found: list[int] = self.prompt[low:high].tolist()
        return found + self.output[max(low - size, 0) : max(high - size, 0)]


class Pressure:
    """One pass over a trace.

    kill: the rank that is killed once half of the requests are done, in the next decision that admits nobody
        (it has the same messages everywhere); -1 for none.
    """

    def __init__(self, scheduler: Any, ranks: Ranks, trace: Trace, kill: int) -> None:
        self.scheduler, self.ranks, self.trace, self.kill = scheduler, ranks, trace, kill
        self.open: dict[int, Going] = {}
        self.leaving: list[int] = []
        """Done, and the ranks have not been told."""
        self.killed_at = -1
        self.seconds = 0.0
        names = (
            "finished refused steps decisions preemptions resumes most_running prompt_tokens output_tokens"
        )
        self.counts = dict.fromkeys([*names.split(), "cached_tokens", "reads"], 0)
        self.capacity = scheduler.free_blocks()
        for rid, request in enumerate(trace.requests):  # before the ranks wait for a step
            self._submit(rid, prompt_tokens(request), max(1, request.output_tokens))

    def run(self) -> None:
        """To the end.

        Raises:
            Wrong: a rank reads what is not its own, a request has other tokens than it must, or the pools
                are not whole in the end.
        """
        start = time.perf_counter()
        with quiet():
            while self.open:
                self._step()
            if self.leaving:
                self._decide([])
        self.seconds = time.perf_counter() - start
        if self.scheduler.has_work() or self.scheduler.free_blocks() != self.capacity:
            raise Wrong("the scheduler has work or holds blocks after the last request")
        self._alike()

    def _submit(self, rid: int, prompt: Ids, wanted: int) -> None:
        try:
            self.scheduler.submit(rid, prompt.tolist(), wanted)
        except Refused:
            self.counts["refused"] += 1
        else:
            self.open[rid] = Going(prompt, wanted)
            self.counts["prompt_tokens"] += len(prompt)

    def _alike(self) -> None:
        ends = self.ranks.end()
        if len({(epoch, digest) for epoch, digest, _ in ends.values()}) != 1:
            raise Wrong(f"the ranks {sorted(ends)} do not end alike")
        for rank, (_, _, free) in ends.items():
            if free != self.capacity:
                raise Wrong(f"rank {rank} has {free} free blocks in the end, of {self.capacity}")

    # ------------------------------------------------------------ a step

    def _step(self) -> None:
        rows = self.scheduler.plan()
        operations: Operations = []
        for rid in self.scheduler.preempted():
            self.counts["preemptions"] += 1
            if self.open[rid].computed:
                self.open[rid].away = True
                operations.append(("preempt", rid))
        behind: Operations = []
        for rid, _low, high, _table in rows:
            one = self.open[rid]
            if one.away:
                one.away = False
                self.counts["resumes"] += 1
                operations.append(("resume", rid))
                more = behind  # a sequence has one operation a step
            else:
                more = operations
            if high > one.computed:
                tokens = one.tokens(one.computed, high)
                more.append(("append" if one.computed else "add", rid, tokens))
        reads: dict[int, int] = {}
        for part in (operations, behind):
            if part:
                reads |= self._decide(part)
        fed = [self._sampled(rid, high, reads) for rid, _, high, _ in rows]
        self.counts["steps"] += 1
        self.counts["most_running"] = max(self.counts["most_running"], len(rows))
        for rid in self.scheduler.feed(fed):
            self._done(rid)
        if not rows and not self.leaving:
            raise Wrong(f"nothing is planned, and {len(self.open)} requests are left")

    def _decide(self, operations: Operations) -> dict[int, int]:
        """Let the ranks take a step; the KV that they read at the last position of each sequence."""
        operations = [*(("free", rid) for rid in self.leaving), *operations]
        self.leaving = []
        half = 2 * self.counts["finished"] >= len(self.trace.requests)
        plain = all(name in ("append", "free") for name, *_ in operations)
        if self.kill >= 0 and self.killed_at < 0 and half and plain:
            self.killed_at = self.counts["decisions"]
            self.ranks.kill(self.kill)
        answers, reads = self.ranks.step(operations)
        self.counts["decisions"] += 1
        self.counts["cached_tokens"] += sum(n or 0 for n in answers)
        for name, seq, *tokens in operations:
            if name in ("add", "append"):
                self.open[seq].kv.extend(tokens[0])
            if name in ("add", "append", "resume"):
                self._judge(seq, reads)
        first = reads[min(reads)]
        return {seq: last for seq, (last, _) in first.items()}

    def _judge(self, seq: int, reads: Reads) -> None:
        kv = self.open[seq].kv
        for rank, found in reads.items():
            last, total = found.get(seq, (0, 0))
            if last != kv.last or total not in (0, kv.total):
                where = f"request {seq} of {kv.length} tokens"
                raise Wrong(f"rank {rank} reads other KV through its table than that of {where}")
            self.counts["reads"] += 1

    def _sampled(self, rid: int, high: int, reads: dict[int, int]) -> int:
        one = self.open[rid]
        if high < len(one.prompt) + len(one.output):
            return POISON
        one.output.append(next_token(reads[rid]))
        return one.output[-1]

    def _done(self, rid: int) -> None:
        """It must have exactly the tokens that its prompt leads to."""
        one = self.open.pop(rid)
        self.leaving.append(rid)
        kv, right = Expected(), list[int]()
        kv.extend(one.prompt)
        for _ in range(one.wanted):
            right.append(next_token(kv.last))
            kv.extend(right[-1:])
        outputs = "output" in self.scheduler.capabilities
        got = [int(t) for t in self.scheduler.output(rid)] if outputs else one.output
        if got != right:
            raise Wrong(f"request {rid} ends with other tokens than its prompt of {len(one.prompt)} leads to")
        self.counts["finished"] += 1
        self.counts["output_tokens"] += len(right)

"""A group of ranks with the KV of each, in one object or as processes, one of which may be killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from kvproof.bench import rank_child
from kvproof.bench.crew import Crew
from kvproof.bench.rank_memory import RankMemory, Read
from kvproof.bench.rank_work import Operations
from kvproof.bench.subject import Subject, Unsupported, Wrong
from kvproof.contract import RankGone, RankLost
from kvproof.subjects.network import SimulatedNetwork

Reads: TypeAlias = dict[int, dict[int, Read]]
"""By rank, and by sequence that a step computes there."""


class Ranks(Protocol):
    """What serves a trace. A context manager."""

    lost: list[int]
    again: int
    """Steps that were taken again, as they had no effect before the loss."""

    def __enter__(self) -> Ranks: ...

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def step(self, operations: Operations) -> tuple[Sequence[int | None], Reads]:
        """Take a step to its end, over the loss of a rank if need be; answers, and what each rank reads."""
        ...

    def kill(self, rank: int) -> None:
        """This rank's process ends in the middle of the next step."""
        ...

    def end(self) -> Mapping[int, tuple[int, bytes, int]]:
        """(epoch, digest, free blocks) of every rank that is left."""
        ...


class Together:
    """All ranks in one object, over the network of the fault histories."""

    def __init__(self, s: Subject, pools: Sequence[int]) -> None:
        if s.make_ranks is None:
            raise Unsupported("no ranks: no factory make_ranks")
        self.network = SimulatedNetwork(len(pools))
        self.group = s.make_ranks(pools, s.block_size, self.network)
        if "worker_view" not in self.group.capabilities:
            raise Unsupported("no capability worker_view: what reaches a rank cannot be seen")
        self.memory = [RankMemory(n, s.block_size) for n in pools]
        self.epoch, self.lost, self.again = 0, list[int](), 0
        self._faults: list[dict[str, Any]] = []

    def __enter__(self) -> Together:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def kill(self, rank: int) -> None:
        # A worker has the commit and not answered it; the driver has told one of the others to commit.
        events = 3 if rank else 2 * len(self.memory) - 1
        self._faults = [{"rank": rank, "kind": "kill", "events": events}]

    def step(self, operations: Operations) -> tuple[Sequence[int | None], Reads]:
        before = self.epoch
        while self.epoch == before:
            self.network.arm(self._faults)
            self._faults = []
            answers: Sequence[int | None] = [None] * len(operations)
            try:
                answers = self.group.step(operations)
            except (RankLost, RankGone):
                self.group.form()
                self.lost = sorted(self.network.dead)
            epochs = {self.group.epoch(rank) for rank in self._alive()}
            if not epochs <= {before, before + 1} or len(epochs) != 1:
                raise Wrong(f"after a step at epoch {before} the ranks are at {sorted(epochs)}")
            self.epoch = epochs.pop()
            self.again += self.epoch == before
        return answers, {rank: self._reads(rank, operations) for rank in self._alive()}

    def _alive(self) -> list[int]:
        return [rank for rank in range(len(self.memory)) if self.network.running(rank)]

    def _reads(self, rank: int, operations: Operations) -> dict[int, Read]:
        found = {}
        for name, seq, *_ in operations:
            if name in ("add", "append", "resume"):
                start, tokens = self.group.view(rank, seq)
                found[seq] = self.memory[rank].compute(self.group.table(rank, seq), start, tokens)
        return found

    def end(self) -> Mapping[int, tuple[int, bytes, int]]:
        g = self.group
        return {r: (g.epoch(r), bytes(g.digest(r)), g.free_blocks(r)) for r in self._alive()}


class Apart:
    """Each rank in a process of its own."""

    def __init__(self, s: Subject, pools: Sequence[int]) -> None:
        if not s.rank_process:
            raise Unsupported("no ranks as processes: no factory make_rank_process")
        self.subject, self.pools = s, pools
        self.epoch, self.lost, self.again = 0, list[int](), 0
        self.alive = list(range(len(pools)))
        self.reads: dict[int, tuple[int, dict[int, Read]]] = {}

    def __enter__(self) -> Apart:
        s = self.subject
        self.crew = Crew(len(self.pools), rank_child.serving, s.rank_process, list(self.pools), s.block_size)
        self.crew.__enter__()
        try:
            self.driver = self._until_formed()
        except BaseException:
            self.crew.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.crew.__exit__(kind, error, trace)

    def kill(self, rank: int) -> None:
        self.crew.posts[rank].doom.set()

    def _hear(self) -> list[tuple[int, Any]]:
        """What the ranks say, those that end and the reads set aside."""
        found = []
        for rank, said in self.crew.told(self.alive):
            if said is None:
                self.alive.remove(rank)
                self.lost.append(rank)
            elif said[0] == "read":
                self.reads[rank] = said[1:]
            else:
                found.append((rank, said))
        return found

    def _until_formed(self) -> int:
        """The rank that drives."""
        while True:
            for rank, said in self._hear():
                if said[0] == "driver":
                    return rank

    def step(self, operations: Operations) -> tuple[Sequence[int | None], Reads]:
        before = self.epoch
        while self.epoch == before:
            self.crew.posts[self.driver].pipe.send(operations)
            answers: Sequence[int | None] = [None] * len(operations)
            waiting = True
            while waiting:
                for rank, said in self._hear():
                    if said[0] == "done":
                        answers, self.epoch, waiting = said[1], before + 1, False
                    elif said[0] == "driver":
                        self.driver, self.epoch, waiting = rank, said[1], False
            if self.epoch not in (before, before + 1):
                raise Wrong(f"after a step at epoch {before} the group is at {self.epoch}")
            self.again += self.epoch == before
        while any(self.reads.get(rank, (0,))[0] != self.epoch for rank in self.alive):
            self._hear()
        return answers, {rank: self.reads[rank][1] for rank in self.alive}

    def end(self) -> Mapping[int, tuple[int, bytes, int]]:
        self.crew.posts[self.driver].pipe.send(None)
        found: dict[int, tuple[int, bytes, int]] = {}
        while found.keys() != set(self.alive):
            found |= {rank: said[1:] for rank, said in self._hear() if said[0] == "end"}
        return found

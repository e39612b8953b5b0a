"""A rank as a process of its own, for whoever starts the processes: benchmarks, torchrun (chapter 3.2.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.contract import BadInput

from .inputs import whole
from .processes import Process, dist
from .rank import Rank
from .replica import Prepared

TIMEOUT = 60.0
"""Seconds: a rank that is killed is seen at once, and one on a busy machine is not lost."""
Watch = Callable[[int, list[tuple[int, int, Sequence[int], list[int]]]], None]


class Watched(Rank):
    """Tells each step as soon as it has taken effect here, before anybody is answered."""

    watch: Watch | None = None

    def apply(self, prepared: Prepared) -> None:
        super().apply(prepared)
        if self.watch:
            changes = prepared.decision.changes
            rows = [(c.seq, c.start, c.tokens, self.table(c.seq)) for c in changes if c.tokens]
            self.watch(self.replica.epoch, rows)


class Member(Process):
    """See `kvproof.contract.RankProcess`."""

    rank_type = Watched
    rank: Watched

    def watch(self, told: Watch) -> None:
        self.rank.watch = told

    def epoch(self) -> int:
        return self.rank.replica.epoch

    def digest(self) -> bytes:
        return self.rank.replica.digest()

    def free_blocks(self) -> int:
        return len(self.rank.replica.idle)


def join(rank: int, world: int, num_blocks: int, block_size: int, rendezvous: str) -> Member:
    """This process's rank of a group that is complete when all have come.

    Raises:
        BadInput: a number is out of range, or torch knows no such rendezvous.
    """
    whole(world, "world", 1, 2**16)
    whole(rank, "rank", 0, world - 1)
    whole(num_blocks, "num_blocks", 1, 2**31 - 1)
    whole(block_size, "block_size", 1, 2**20)
    try:
        store, _, _ = next(dist.rendezvous(rendezvous, rank=rank, world_size=world))
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"rendezvous {rendezvous!r}: {error}") from error
    return Member(store, rank, world, num_blocks, block_size, timeout=TIMEOUT)

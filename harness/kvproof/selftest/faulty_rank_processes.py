"""Rank processes with one fault each, opened by name in every process of a group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kvproof.contract import RankLost
from kvproof_impls.faulty import ranks as faulty
from kvproof_impls.reference.processes import Process, dist


class AppliedWhenAsked(Process):
    rank_type = faulty.AppliedWhenAsked.rank_type


class EpochsNotSettled(Process):
    rank_type = faulty.EpochsNotSettled.rank_type


class DamageTaken(Process):
    rank_type = faulty.DamageTaken.rank_type


class RepeatedCommitApplied(Process):
    rank_type = faulty.RepeatedCommitApplied.rank_type


class WaitsForTheDead(Process):
    """Rank 2 hears that another is lost, and waits on."""

    def serve(self) -> None:
        try:
            super().serve()
        except RankLost:
            if self.rank.number == 2:
                threading.Event().wait()
            raise


class DiesInForming(Process):
    """Every second rank ends when the group is formed again."""

    def form(self) -> None:
        if self.rank.number % 2:
            raise SystemExit(f"rank {self.rank.number} does not form")
        super().form()


class PastTheTap(Process):
    """Nobody sees its messages."""

    def __init__(self, *args: Any, tap: Any, **more: Any) -> None:
        super().__init__(*args, tap=None, **more)


def _factory(kind: type[Process]) -> Callable[..., Process]:
    def make(
        rank: int, world: int, num_blocks: int, block_size: int, rendezvous: str, *, timeout: float, tap: Any
    ) -> Process:
        store, _, _ = next(dist.rendezvous(rendezvous, rank=rank, world_size=world))
        return kind(store, rank, world, num_blocks, block_size, timeout=timeout, own_ids=True, tap=tap)

    return make


applied_when_asked = _factory(AppliedWhenAsked)
epochs_not_settled = _factory(EpochsNotSettled)
damage_taken = _factory(DamageTaken)
repeated_commit_applied = _factory(RepeatedCommitApplied)
waits_for_the_dead = _factory(WaitsForTheDead)
past_the_tap = _factory(PastTheTap)
dies_in_forming = _factory(DiesInForming)

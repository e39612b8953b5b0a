"""All ranks of a group in one object, over the network it is given (chapter 3.2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.contract import BadInput, Network, RankGone, RankLost

from .driver import Driver
from .inputs import whole
from .rank import Rank


class Group:
    """Rank r has pools[r] blocks; see `kvproof.contract.RankGroup`.

    A rank works on its messages whenever the driver waits for an answer.
    """

    rank_type = Rank
    driver_type = Driver
    capabilities = frozenset(("local_evict", "worker_view", "refusing"))

    def __init__(
        self, pools: Sequence[int], block_size: int, network: Network, *, own_ids: bool = False
    ) -> None:
        if not pools:
            raise BadInput("a group needs a rank at least")
        whole(block_size, "block_size", 1, 2**20)
        sizes = [whole(n, f"blocks of rank {r}", 1, 2**31 - 1) for r, n in enumerate(pools)]
        self.network = network
        self.ranks = [self.rank_type(r, n, block_size, own_ids) for r, n in enumerate(sizes)]
        self.gone: set[int] = set()
        self.driver = self._drive(range(len(sizes)), 1)
        self.driver.start()

    def _drive(self, members: Sequence[int], generation: int) -> Driver:
        """The lowest member drives."""
        first, *others = members
        return self.driver_type(self.ranks[first], others, _Waiting(self, first), generation)

    def step(self, operations: Sequence[tuple[Any, ...]]) -> list[int | None]:
        try:
            return self.driver.step(operations)
        except RankGone as end:
            self._without_driver(end.rank)
            raise

    def form(self) -> None:
        members = [r.number for r in self.ranks if self.alive(r.number)]
        # Who does not come now may hold a step that the others never see: it stays behind for good.
        self.gone |= {r.number for r in self.ranks} - set(members)
        if not members:
            raise RankLost(range(len(self.ranks)), "no rank is left")
        generation = 1 + max(self.ranks[r].generation for r in members)
        self.driver = self._drive(members, generation)
        try:
            self.driver.join()
        except RankLost as error:
            self.gone.update(error.ranks)  # what could not be brought along stays behind
            raise
        except RankGone as end:
            self._without_driver(end.rank)
            raise

    def _without_driver(self, driver: int) -> None:
        """The others work on what has come, and then wait in vain."""
        self.gone.add(driver)
        while self.work() or self.network.wait():
            pass
        for rank in self.ranks:
            if self.alive(rank.number):
                rank.lost.add(driver)

    def alive(self, rank: int) -> bool:
        return rank not in self.gone and self.network.running(rank)

    def work(self) -> bool:
        """Every rank but the driver answers what has come for it; False if nothing has."""
        worked = False
        for rank in self.ranks:
            if rank is self.driver.rank or not self.alive(rank.number):
                continue
            try:
                while self.alive(rank.number) and (came := self.network.receive(rank.number)):
                    worked = True
                    answer = rank.handle(came[1])
                    if answer is not None:
                        self.network.send(rank.number, came[0], answer)
            except RankGone:
                self.gone.add(rank.number)
        return worked

    # ------------------------------------------------------------ questions

    def table(self, rank: int, seq: int) -> list[int]:
        return self.ranks[rank].table(seq)

    def digest(self, rank: int) -> bytes:
        return self.ranks[rank].replica.digest()

    def epoch(self, rank: int) -> int:
        return self.ranks[rank].replica.epoch

    def free_blocks(self, rank: int) -> int:
        return len(self.ranks[rank].replica.idle)

    def lost(self, rank: int) -> list[int]:
        return sorted(self.ranks[rank].lost)

    def evict(self, rank: int, count: int) -> list[int]:
        return self.ranks[rank].evict(count)

    def view(self, rank: int, seq: int) -> tuple[int, Sequence[int]]:
        self.ranks[rank].replica.row(seq)
        return self.ranks[rank].received[seq]

    def refuse(self, rank: int) -> None:
        self.ranks[rank].refusing = True


class _Waiting:
    """The driver's end of the network: while it waits, the others work."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank = group, rank

    def send(self, target: int, data: bytes) -> None:
        self.group.network.send(self.rank, target, data)

    def receive(self) -> tuple[int, bytes] | None:
        while True:
            came = self.group.network.receive(self.rank)
            if came is not None:
                return came
            if not self.group.work() and not self.group.network.wait():
                return None

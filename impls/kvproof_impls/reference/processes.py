"""A group of processes, one a rank, over torch.distributed's gloo (chapter 3.2.4).

Messages go point to point over a gloo group of their own on the CPU, whatever the tensors use. Who is lost
and who forms the next group stands in the store of the rendezvous, which must outlive every rank: that of
torchrun's agent does. A gloo group that has seen a dead or stuck rank is of no use any more, so each
formation makes a new one.

    torchrun --nproc-per-node 4 -m kvproof_impls.reference.processes
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from kvproof.contract import RankLost, Tap

from .driver import Driver
from .link import STOP, Asking, Link, dist
from .rank import Kind, Rank, pack, pack_size

__all__ = ["Process", "ProcessDriver", "dist"]

GRACE = 0.5
"""Seconds in which a driver that lives has said who is lost."""


class ProcessDriver(Driver):
    """Tells who is lost through the store as well: after a timeout the gloo group is broken."""

    tell: Callable[[Iterable[int]], None]

    def _lose(self, ranks: Iterable[int], why: str) -> None:
        self.rank.lost |= set(ranks)
        self.tell(self.rank.lost)
        self.serial += 1
        data = pack(Kind.DROP, self.generation, self.serial, pack_size(*sorted(self.rank.lost)))
        for other in self.others:
            if other not in self.rank.lost:
                self.transport.send(other, data)  # nobody waits for the answer
        raise RankLost(sorted(self.rank.lost), why)


class Process:
    """This process's rank in a group of `world`; see `kvproof.contract.RankProcess`.

    timeout: seconds after which a silent rank is lost. A request is sent again in each quarter of them.
    """

    rank_type = Rank
    capabilities = frozenset(("local_evict", "worker_view", "refusing"))

    def __init__(
        self,
        store: Any,
        rank: int,
        world: int,
        num_blocks: int,
        block_size: int,
        *,
        timeout: float = 10.0,
        own_ids: bool = False,
        tap: Tap | None = None,
    ) -> None:
        self.store, self.timeout, self.tap = store, timeout, tap
        self.rank = self.rank_type(rank, num_blocks, block_size, own_ids)
        self.members = list(range(world))
        self.generation = 0
        self.driver: ProcessDriver | None = None
        self.asking: Asking | None = None
        self._begin(1)
        if self.driver and self.asking:
            self.driver.start()
            self.asking.idle.set()

    @property
    def drives(self) -> bool:
        return self.members[0] == self.rank.number

    def _begin(self, generation: int) -> None:
        self.generation, self.rank.lost = generation, set()
        self.driver = self.asking = None
        self.link = Link(self.store, generation, self.members, self.rank.number, self.timeout, self.tap)
        if self.drives:
            self.asking = Asking(self.link, self.members[1:], self.timeout / ProcessDriver.tries)
            self.driver = ProcessDriver(self.rank, self.members[1:], self.asking, generation)
            self.driver.tell = self._tell

    def _tell(self, lost: Iterable[int]) -> None:
        self.store.set(f"kvproof/{self.generation}/lost", ",".join(map(str, sorted(lost))))

    def step(self, operations: Sequence[tuple[Any, ...]]) -> list[int | None]:
        """On the driver; see `kvproof.contract.RankGroup.step`."""
        assert self.driver is not None, "step is called on the driver"
        assert self.asking is not None
        self.asking.idle.clear()
        try:
            return self.driver.step(operations)
        finally:
            if not self.rank.lost:
                self.asking.idle.set()

    def stop(self) -> None:
        """On the driver: the others' `serve` returns."""
        if self.driver and self.asking:
            self.asking.close()
            # After a loss nobody serves, and gloo would wait for someone who does.
            for other in self.driver.others if not self.rank.lost else ():
                with contextlib.suppress(RuntimeError):  # dead
                    self.link.send(other, STOP)
                    self.link.flush(other)

    def serve(self) -> None:
        """On every other rank: answer the driver until it stops.

        Raises:
            RankLost: the driver, or whom the driver has named.
        """
        # A little longer than the driver waits: it knows better who is lost.
        limit = timedelta(seconds=self.timeout * (1 + 1 / ProcessDriver.tries))
        while True:
            try:
                data = self.link.receive(self.members[0], limit)
                if data == STOP:
                    return
                answer = self.rank.handle(data)
                if answer is not None:
                    self.link.send(self.members[0], answer)
            except RuntimeError as error:
                self._lost(error)
            if self.rank.lost:
                raise RankLost(sorted(self.rank.lost), "lost, the driver says")

    def _lost(self, error: Exception) -> None:
        """Who is lost: whom the driver names, or the driver."""
        key = f"kvproof/{self.generation}/lost"
        until = time.monotonic() + min(self.timeout, GRACE)
        while not (said := self.store.check([key])) and time.monotonic() < until:
            time.sleep(0.01)
        named = self.store.get(key).decode() if said else str(self.members[0])
        self.rank.lost = set(map(int, named.split(",")))
        raise RankLost(sorted(self.rank.lost), str(error).splitlines()[0]) from None

    def form(self) -> None:
        """Form the group again of the members that come within the timeout; nobody serves now.

        Raises:
            RankLost: this rank came too late, or another was lost meanwhile.
        """
        closed: set[int] = set()
        if self.asking:
            self.asking.close()
            closed = set(self.asking.closed_by)
        generation = self.generation + 1
        place = f"kvproof/{generation}"
        self.store.set(f"{place}/here/{self.rank.number}", "1")
        begun = time.monotonic()
        wanted = [r for r in self.members if r not in self.rank.lost]
        while (spent := time.monotonic() - begun) < self.timeout:
            # Whoever has closed its link is dead, or forms the group too and is here soon.
            awaited = set(wanted) - (closed if spent > GRACE else set())
            if all(self._here(place, r) for r in awaited) or self.store.check([f"{place}/members"]):
                break
            time.sleep(0.01)
        present = ",".join(str(r) for r in wanted if self._here(place, r))
        # Whoever is first decides for all. Those that were named lost stay behind.
        agreed = self.store.compare_set(f"{place}/members", "", present).decode()
        self.members = [int(r) for r in agreed.split(",") if r]
        if self.rank.number not in self.members:
            raise RankLost([self.rank.number], "came too late: the others have formed a group without it")
        try:
            self._begin(generation)
        except RuntimeError as error:
            self.generation = generation
            raise RankLost(self.members, f"forming: {str(error).splitlines()[0]}") from None
        if self.driver and self.asking:
            self.driver.join()
            self.asking.idle.set()

    def _here(self, place: str, rank: int) -> bool:
        return bool(self.store.check([f"{place}/here/{rank}"]))

    # ------------------------------------------------------------ questions

    def table(self, seq: int) -> list[int]:
        return self.rank.table(seq)

    def digest(self) -> bytes:
        return self.rank.replica.digest()

    def epoch(self) -> int:
        return self.rank.replica.epoch

    def free_blocks(self) -> int:
        return len(self.rank.replica.idle)

    def lost(self) -> list[int]:
        return sorted(self.rank.lost)

    def evict(self, count: int) -> list[int]:
        return self.rank.evict(count)

    def view(self, seq: int) -> tuple[int, Sequence[int]]:
        self.rank.replica.row(seq)
        return self.rank.received[seq]

    def refuse(self) -> None:
        self.rank.refusing = True


def main() -> None:
    """Time steps of a group started by torchrun: microseconds a step by kind, on the driver."""
    store, rank, world = next(dist.rendezvous("env://"))
    process = Process(store, rank, world, 4096, 16)
    if not process.drives:
        process.serve()
        return
    for seqs in (1, 32, 256):
        ids = range(seqs)
        process.step([("add", s, [1] * 40) for s in ids])
        spent = []
        for _ in range(100):
            begun = time.perf_counter()
            process.step([("append", s, [1]) for s in ids])
            spent.append(time.perf_counter() - begun)
        process.step([("free", s) for s in ids])
        middle = sorted(spent)[len(spent) // 2]
        sys.stdout.write(f"{world} ranks, {seqs} sequences: {middle * 1e6:.0f} us a decode step\n")
    process.stop()


if __name__ == "__main__":
    main()

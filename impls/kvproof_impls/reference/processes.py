"""A group of processes, one a rank, over torch.distributed's gloo (chapter 3.2.4).

Messages go point to point over a gloo group of their own on the CPU, whatever the tensors use. Who is lost
and who forms the next group stands in the store of the rendezvous, which must outlive every rank: that of
torchrun's agent does. A gloo group that has seen a dead or stuck rank is of no use any more, so each
formation makes a new one.

    torchrun --nproc-per-node 4 -m kvproof_impls.reference.processes
"""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch

from kvproof.contract import RankLost

from .driver import Driver
from .rank import Kind, Rank, pack, pack_size

dist: Any = import_module("torch.distributed")  # much of what is used here has no types

FRAME = 512
"""Bytes of the first part of a message: its length, and as much of it as there is room for."""
_HEAD = 8
GRACE = 1.0
"""Seconds in which a driver that lives has said who is lost."""


class Link:
    """Messages between the members of one gloo group."""

    def __init__(
        self, store: Any, generation: int, members: Sequence[int], rank: int, timeout: float
    ) -> None:
        self.members, self.limit = list(members), timedelta(seconds=timeout)
        place = dist.PrefixStore(f"kvproof/{generation}", store)
        self.group = dist.ProcessGroupGloo(place, self.members.index(rank), len(members), self.limit)

    def send(self, target: int, data: bytes) -> None:
        """Raises RuntimeError when the target is dead, or stuck for the timeout."""
        whole = len(data).to_bytes(_HEAD, "little") + data
        whole += bytes(max(FRAME - len(whole), 0))
        place = self.members.index(target)
        for part in (whole[:FRAME], whole[FRAME:]):
            if part:
                tensor = torch.frombuffer(bytearray(part), dtype=torch.uint8)
                self.group.send([tensor], place, 0).wait(self.limit)

    def receive(self, source: int) -> bytes:
        """The next message from the source; raises as `send`."""
        place = self.members.index(source)
        first = torch.empty(FRAME, dtype=torch.uint8)
        self.group.recv([first], place, 0).wait(self.limit)
        data = bytes(first.tolist())
        size = int.from_bytes(data[:_HEAD], "little")
        if size > FRAME - _HEAD:
            rest = torch.empty(size + _HEAD - FRAME, dtype=torch.uint8)
            self.group.recv([rest], place, 0).wait(self.limit)
            data += bytes(rest.tolist())
        return data[_HEAD : _HEAD + size]


class Asking:
    """The driver's transport: each question and its answer in a thread, for both may block."""

    def __init__(self, link: Link, timeout: float) -> None:
        self.link, self.timeout, self.waiting = link, timeout, 0
        self.answers: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
        self.threads = ThreadPoolExecutor(max(len(link.members) - 1, 1))

    def send(self, target: int, data: bytes) -> None:
        self.waiting += 1
        self.threads.submit(self._exchange, target, data)

    def _exchange(self, target: int, data: bytes) -> None:
        answer = None
        with contextlib.suppress(RuntimeError):  # dead or stuck: no answer
            self.link.send(target, data)
            answer = self.link.receive(target)
        self.answers.put((target, answer))

    def receive(self) -> tuple[int, bytes] | None:
        while self.waiting:
            source, answer = self.answers.get()
            self.waiting -= 1
            if answer is not None:
                return source, answer
        return None

    def close(self) -> None:
        self.threads.shutdown(wait=False)


class ProcessDriver(Driver):
    """Tells who is lost through the store as well: after a timeout the gloo group is broken."""

    tries = 1
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
    """This process's rank in a group of `world`; every call but `step` is made on all ranks.

    timeout: seconds after which a silent rank is lost. The driver steps, if only with no operations, in
    less than that.
    """

    rank_type = Rank

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
    ) -> None:
        self.store, self.timeout = store, timeout
        self.rank = self.rank_type(rank, num_blocks, block_size, own_ids)
        self.members = list(range(world))
        self.generation = 0
        self.driver: ProcessDriver | None = None
        self._begin(1)
        if self.driver:
            self.driver.start()

    @property
    def drives(self) -> bool:
        return self.members[0] == self.rank.number

    def _begin(self, generation: int) -> None:
        self.generation, self.rank.lost = generation, set()
        self.link = Link(self.store, generation, self.members, self.rank.number, self.timeout)
        self.driver = None
        if self.drives:
            asking = Asking(self.link, self.timeout)
            self.driver = ProcessDriver(self.rank, self.members[1:], asking, generation)
            self.driver.tell = self._tell

    def _tell(self, lost: Iterable[int]) -> None:
        self.store.set(f"kvproof/{self.generation}/lost", ",".join(map(str, sorted(lost))))

    def step(self, operations: Sequence[tuple[Any, ...]]) -> list[int | None]:
        """On the driver; see `kvproof.contract.RankGroup.step`."""
        assert self.driver is not None, "step is called on the driver"
        return self.driver.step(operations)

    def stop(self) -> None:
        """On the driver: the others' `serve` returns."""
        if self.driver:
            for other in self.driver.others:
                self.link.send(other, b"")

    def serve(self) -> None:
        """On every other rank: answer the driver until it stops.

        Raises:
            RankLost: the driver, or whom the driver has named.
        """
        while True:
            try:
                data = self.link.receive(self.members[0])
                if not data:
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
        named = str(self.members[0])
        with contextlib.suppress(RuntimeError):
            self.store.wait([key], timedelta(seconds=min(self.timeout, GRACE)))
            named = self.store.get(key).decode()
        self.rank.lost = set(map(int, named.split(",")))
        raise RankLost(sorted(self.rank.lost), str(error).splitlines()[0]) from None

    def form(self) -> None:
        """Form the group again of the members that come within the timeout.

        Raises:
            RankLost: this rank came too late, or another was lost meanwhile.
        """
        generation = self.generation + 1
        place = f"kvproof/{generation}"
        self.store.set(f"{place}/here/{self.rank.number}", "1")
        until = time.monotonic() + self.timeout + 1
        wanted = [r for r in self.members if r not in self.rank.lost]
        while time.monotonic() < until and not all(self._here(place, r) for r in wanted):
            time.sleep(0.01)
        present = ",".join(str(r) for r in self.members if self._here(place, r))
        # Whoever is first decides for all.
        agreed = self.store.compare_set(f"{place}/members", "", present).decode()
        self.members = [int(r) for r in agreed.split(",")]
        if self.rank.number not in self.members:
            raise RankLost([self.rank.number], "came too late: the others have formed a group without it")
        try:
            self._begin(generation)
        except RuntimeError as error:
            self.generation = generation
            raise RankLost(self.members, f"forming: {str(error).splitlines()[0]}") from None
        if self.driver:
            self.driver.join()

    def _here(self, place: str, rank: int) -> bool:
        return bool(self.store.check([f"{place}/here/{rank}"]))


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

"""One process of a group under test.

It takes the steps of PLAN, ends or stops itself where it is told to, forms the group again after a loss,
and says what it holds in the end. Step e is the one that leads from epoch e to the next, so that whoever
drives after a loss goes on where the group is.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from kvproof.contract import RankLost

PLAN: list[list[tuple[Any, ...]]] = [
    [("add", 0, [1] * 9), ("add", 1, [1] * 8 + [2] * 4)],
    [("append", 0, [1]), ("append", 1, [2])],
    [("append", 0, [2]), ("preempt", 1)],
    [("append", 0, [1]), ("add", 2, [1] * 8 + [3] * 5)],
    [("append", 0, [1]), ("append", 2, [1]), ("resume", 1)],
    [("free", 0), ("append", 1, [1]), ("append", 2, [2])],
]


def main(told: dict[str, Any], said: Connection) -> None:
    """`told`: rank, world, port, blocks, timeout, fault; what it holds goes into `said`."""
    from kvproof_impls.reference.processes import Process, dist
    from kvproof_impls.reference.rank import Kind, Rank

    rank, fault = told["rank"], told["fault"]
    mine = fault.get("rank") == rank

    def end(when: str, epoch: int) -> None:
        if mine and fault["when"] == when and fault["epoch"] == epoch:
            os.kill(os.getpid(), getattr(signal, fault["signal"]))

    class Ending(Rank):
        def _prepare(self, body: bytes) -> bytes:
            end("asked", self.replica.epoch)
            digest = super()._prepare(body)
            end("prepared", self.replica.epoch)
            return digest

        def _commit(self) -> bytes:
            end("before commit", self.replica.epoch)
            digest = super()._commit()
            end("committed", self.replica.epoch - 1)
            return digest

    class Ours(Process):
        rank_type = Ending

    store = dist.TCPStore("127.0.0.1", told["port"], is_master=False)
    process = Ours(store, rank, told["world"], told["blocks"], 4, timeout=told["timeout"], own_ids=True)
    sent: dict[int, int] = {}

    def watch() -> None:
        """The driver ends in the middle of its messages."""
        assert process.driver is not None
        send = process.driver.transport.send

        def counted(target: int, data: bytes) -> None:
            kind, epoch = data[2], process.rank.replica.epoch
            sent[kind] = sent.get(kind, 0) + 1 if kind in (Kind.PREPARE, Kind.COMMIT) else 0
            if kind == Kind.PREPARE:
                end("driver asks", epoch)
                sent[Kind.COMMIT] = 0
            if kind == Kind.COMMIT and sent[kind] == 1:
                end("driver before commits", epoch - 1)
            if kind == Kind.COMMIT and sent[kind] == 2:
                time.sleep(0.2)  # the first has arrived
                end("driver between commits", epoch - 1)
            send(target, data)

        process.driver.transport.send = counted  # type: ignore[method-assign]

    lost: list[int] = []
    behind = False
    while True:
        try:
            if process.driver:
                watch()
                while process.rank.replica.epoch < len(PLAN):
                    process.step(PLAN[process.rank.replica.epoch])
                process.stop()
            else:
                process.serve()
            break
        except RankLost as error:
            lost += error.ranks
            try:
                process.form()
            except RankLost as again:
                lost += again.ranks
                behind = True
                break
    replica = process.rank.replica
    held = {
        "epoch": replica.epoch,
        "digest": replica.digest().hex(),
        "lost": sorted(set(lost)),
        "behind": behind,
        "tokens": {str(seq): tokens for seq, tokens in sorted(replica.tokens.items())},
        "tables": {str(seq): process.rank.table(seq) for seq in sorted(replica.rows)},
        "members": process.members,
    }
    said.send(held)
    os._exit(0)  # threads that wait for a dead rank must not keep the process

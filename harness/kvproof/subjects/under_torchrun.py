"""Ranks that torchrun has started: each follows the judge's orders over a connection of its own.

The judge says in torchrun's store where it listens; a judge that has to begin again says so once more.
"""

from __future__ import annotations

import os
import secrets
import time
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

PAUSE = 0.05
"""Seconds between two looks for the next judge."""
COUNT, PLACE, DONE = "kvproof/judges", "kvproof/judge", "kvproof/done"


def here() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _store() -> Any:
    dist = import_module("torch.distributed")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False)


def new_store() -> Any:
    """A store of a group's own, here: torchrun's keeps the keys of every group before."""
    dist = import_module("torch.distributed")
    return dist.TCPStore(os.environ["MASTER_ADDR"], 0, is_master=True, wait_for_workers=False)


def collect() -> list[Connection]:
    """The judge's side: a connection to each rank, in order."""
    key, world, store = secrets.token_bytes(16), int(os.environ["WORLD_SIZE"]), _store()
    with Listener((os.environ["MASTER_ADDR"], 0), authkey=key, backlog=world) as listener:
        port = listener.address[1]
        number = store.add(COUNT, 1)
        store.set(f"{PLACE}/{number}", f"{listener.address[0]} {port} {key.hex()}")
        found: dict[int, Connection] = {}
        while len(found) < world:
            came = listener.accept()
            found[came.recv()] = came
    return [found[rank] for rank in range(world)]


def connect(rank: int, number: int) -> Connection | None:
    """A rank's side: to the judge of this number; None when there will be none."""
    store = _store()
    while not store.check([f"{PLACE}/{number}"]):
        if store.check([DONE]):
            return None
        time.sleep(PAUSE)
    host, port, key = store.get(f"{PLACE}/{number}").decode().split()
    there = Client((host, int(port)), authkey=bytes.fromhex(key))
    there.send(rank)
    return there


def finish() -> None:
    """No judge will come any more."""
    _store().set(DONE, "1")

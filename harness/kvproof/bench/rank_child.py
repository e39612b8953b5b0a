"""What runs in the processes of a crew: one rank each, timed as a group, or serving with a KV memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from kvproof.bench.clock import quiet
from kvproof.bench.crew import Post
from kvproof.bench.rank_memory import RankMemory
from kvproof.bench.rank_work import KINDS, pool, steps
from kvproof.bench.subject import Unsupported, Wrong
from kvproof.contract import ContractError, RankLost
from kvproof.subjects import find
from kvproof.subjects.drive import describe


def _opened(where: str, *shape: Any) -> Any:
    """This process's rank.

    Raises:
        Unsupported: what it needs is not installed.
    """
    try:
        return find(where).factory()(*shape)
    except ImportError as e:
        raise Unsupported(f"PRECONDITION: {e}: pip install {e.name}") from e


def place(rank: int, world: int, cores: Sequence[int]) -> None:
    """Stay on a core of one's own, where there are as many as ranks; else on any.

    Ranks that move between cores take other times from process to process. Two that are kept on one take
    twice the time: gloo's thread polls, for all of its slice, for a lock that a thread beside it holds.

    cores: those of the process; empty where they are not known.
    """
    if cores:
        os.sched_setaffinity(0, {cores[rank]} if world <= len(cores) else set(cores))


def timed(post: Post, where: str, size: int) -> None:
    """Take part in one group after another; (world, sequences, blocks, rounds) comes for each.

    Answers, in the driver, nanoseconds of each round by kind of step; in the others nothing.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # Linux
    while True:
        try:
            world, sequences, blocks, rounds = post.pipe.recv()
        except EOFError:
            return
        try:
            place(post.rank, world, cores)
            blocks_each = pool(sequences, blocks, rounds, size)
            meeting = post.meeting(f"{world}-{sequences}")
            member = _opened(where, post.rank, world, blocks_each, size, meeting)
            if not member.drives:
                member.serve()
                post.pipe.send({})
                continue
            found: dict[str, list[int]] = {kind: [] for kind in KINDS}
            with quiet():
                for taken, (kind, operations) in enumerate(steps(sequences, blocks, size), 1):
                    start = time.perf_counter_ns()
                    member.step(operations)
                    spent = time.perf_counter_ns() - start
                    if kind:
                        found[kind].append(spent)
                    if member.epoch() != taken:
                        raise Wrong(f"at epoch {member.epoch()} after {taken} steps")
                    if all(len(one) >= rounds for one in found.values()):
                        break
            member.stop()
            post.pipe.send(found)
        except (Unsupported, Wrong) as e:
            post.pipe.send(e)
        except Exception as e:
            post.pipe.send(Wrong(f"rank {post.rank}: {describe(e)}"))


def serving(post: Post, where: str, pools: Sequence[int], size: int) -> None:
    """Hold a rank and its KV; the driver takes the steps that come.

    Says ("driver", epoch) whenever it drives a group that was formed, ("done", answers) after a step,
    ("lost", ranks), ("read", epoch, reads) when a step has taken effect, ("end", epoch, digest, free
    blocks). Once its doom is set, this process kills itself in the middle of its next step.
    """
    try:
        blocks = pools[post.rank]
        memory = RankMemory(blocks, size)

        def watch(epoch: int, rows: list[tuple[int, int, Sequence[int], list[int]]]) -> None:
            reads = {seq: memory.compute(table, start, tokens) for seq, start, tokens, table in rows}
            if post.doom.is_set():
                os.kill(os.getpid(), signal.SIGKILL)
            post.pipe.send(("read", epoch, reads))

        member = _opened(where, post.rank, len(pools), blocks, size, post.meeting("all"))
        member.watch(watch)
        while not _served(member, post.pipe):
            member.form()
        post.pipe.send(("end", member.epoch(), member.digest(), member.free_blocks()))
    except (Unsupported, Wrong) as e:
        post.pipe.send(e)
    except Exception as e:
        post.pipe.send(Wrong(f"rank {post.rank}: {describe(e)}"))


def _served(member: Any, pipe: Connection) -> bool:
    """Work until the end, which is true, or the loss of a rank."""
    try:
        if not member.drives:
            member.serve()
            return True
        pipe.send(("driver", member.epoch()))
        while (operations := pipe.recv()) is not None:
            try:
                pipe.send(("done", member.step(operations)))
            except RankLost:
                raise
            except ContractError as e:
                raise Wrong(f"a step is refused: {describe(e)}") from e
        member.stop()
    except RankLost as e:
        pipe.send(("lost", e.ranks))
        return False
    return True

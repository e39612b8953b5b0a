"""Tensor-parallel ranks: one decision a step, the same on all of them (chapter 3.2.4).

A group is judged as one object that simulates all its ranks over a network of the harness, which counts,
delays, loses, repeats, reorders and damages messages, and ends ranks in the middle of their work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from kvproof.contract.errors import ContractError


class RankLost(ContractError):
    """Ranks that are dead or gave no answer within the timeout; the group has to be formed again.

    All survivors are at one epoch once it is: the one before the step, or the one after.
    """

    def __init__(self, ranks: Sequence[int], why: str) -> None:
        self.ranks = tuple(sorted(ranks))
        super().__init__(f"rank {', '.join(map(str, self.ranks))}: {why}")


class Diverged(ContractError):
    """Ranks whose state differs from the driver's: seen before a step it has no effect, else the group has to
    be formed again, without them."""


class RankGone(Exception):
    """The process of this rank ends here: no more code of it may run in the simulation."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        super().__init__(f"the process of rank {rank} has ended")


class Network(Protocol):
    """What a simulated group sends its messages through; there is no other way between two ranks.

    The harness sees who can know of a step: what another rank holds changes only behind a message that leads
    back to the driver of the step, and the driver is done when every rank has answered it (KVP-TP-009).
    """

    def send(self, source: int, target: int, data: bytes) -> None:
        """Raises RankGone(source) when the process of the source ends here."""
        ...

    def receive(self, rank: int) -> tuple[int, bytes] | None:
        """(source, data) of the next message that is there for the rank, None if there is none.

        Raises RankGone(rank) when the process of the rank ends here.
        """
        ...

    def running(self, rank: int) -> bool:
        """The rank's code may run: it is neither dead nor stopped."""
        ...

    def wait(self) -> bool:
        """Let time pass until something is delivered; False when the timeout is over.

        To be called when no rank has a message to work on and one of them waits for an answer.
        """
        ...


Operation = tuple[Any, ...]
"""("add", seq, tokens), ("append", seq, tokens), ("free", seq), ("preempt", seq), ("resume", seq)."""


@runtime_checkable
class RankGroup(Protocol):
    """All ranks of a group in one object.

    Made by a factory `make_ranks(pools, block_size, network)`: rank r has pools[r] blocks of its own. Rank 0
    is the driver, and after its death the lowest survivor. A block is one of the rank's own numbers: the
    tables of two ranks may differ in their numbers, never in which positions share a block.
    """

    capabilities: frozenset[str]

    def step(self, operations: Sequence[Operation]) -> list[int | None]:
        """One decision, on all ranks or on none; a sequence stands in at most one operation.

        add: the tokens of a new sequence; answers how many of them are cached on every rank. append: tokens
        behind the last. preempt: give up all blocks, keep the tokens. resume: take blocks again, answers as
        add. After the step the KV of all positions is written, by every rank, for its heads.

        Raises:
            OutOfBlocks, Refused, UnknownSequence, BadInput: nothing has changed on any rank.
            Diverged: some rank's state differs.
            RankLost: a rank is dead or stuck; see `form`.
            RankGone: the driver's own process ended in this step.
        """
        ...

    def form(self) -> None:
        """Form the group again of all ranks that run; they agree on one epoch, and it goes on from there.

        A rank that is not running now never comes back: it may hold a step that the others do not see.

        Raises:
            RankLost: a further rank was lost while forming.
        """
        ...

    def table(self, rank: int, seq: int) -> Sequence[int]:
        """The rank's own block for each logical block; empty while preempted; else UnknownSequence."""
        ...

    def digest(self, rank: int) -> bytes:
        """Of live ids, token counts and logical tables: equal if and only if these are."""
        ...

    def epoch(self, rank: int) -> int:
        """Decisions that took effect on the rank."""
        ...

    def free_blocks(self, rank: int) -> int:
        """Blocks that a new sequence could take: free and evictable; of an empty group its capacity."""
        ...

    def lost(self, rank: int) -> Sequence[int]:
        """Ranks that this rank's last error named as dead or stuck, since the group was formed."""
        ...


class RankGroupOptions(Protocol):
    """Members that are judged when the capabilities name them."""

    # local_evict: caches differ between ranks
    def evict(self, rank: int, count: int) -> Sequence[int]:
        """This rank alone loses the contents of `count` cached blocks that nobody owns; its numbers of them.

        Those that it would evict last; fewer if there are not so many.
        """
        ...

    # worker_view
    def view(self, rank: int, seq: int) -> tuple[int, Sequence[int]]:
        """(start, tokens) that reached the rank for the last step of the sequence."""
        ...

    # refusing
    def refuse(self, rank: int) -> None:
        """The rank says no to the next decision that it is asked about, as when its memory is short."""
        ...


class Tap(Protocol):
    """What a rank process shows each of its messages to: the harness counts them, does to them what a history
    says, and ends the process between two of them. What goes past it counts as not sent (KVP-TP-009)."""

    def outgoing(self, target: int, data: bytes) -> Sequence[tuple[float, bytes]]:
        """(seconds from now, data) of each message that is sent in its place; called in order of sending."""
        ...

    def passed(self) -> None:
        """A message was sent, or came and was not looked at yet: the process may end or stop here."""
        ...


class RankProcess(Protocol):
    """One rank in a process of its own.

    (Beside its factories a module may offer `message_parts(data: bytes) -> dict[str, int]`: of how many bytes
    of tokens, tables, digest and so on a message consists. Then the benchmark counts them apart.)

    Made in each process by a factory `make_rank_process(rank, world, num_blocks, block_size, rendezvous, *,
    timeout, tap)`, which returns when all have come. rendezvous: an address that torch.distributed takes,
    such as "file:///path" of a file that is not there yet. timeout: seconds after which a silent rank is
    lost. tap: a `Tap`, or None.

    The processes that do not drive are in `serve` all the time, in a thread; the questions come from another
    one between two steps. Options are those of `RankGroupOptions` without the rank.
    """

    capabilities: frozenset[str]

    @property
    def drives(self) -> bool:
        """This process steps; the others serve. Another one may after `form`."""
        ...

    def step(self, operations: Sequence[Operation]) -> list[int | None]:
        """As `RankGroup.step`, in the process that drives."""
        ...

    def serve(self) -> None:
        """In the others: work until the driver stops. Raises RankLost."""
        ...

    def stop(self) -> None:
        """In the process that drives: the others' `serve` returns."""
        ...

    def form(self) -> None:
        """As `RankGroup.form`, called by every survivor when nobody serves.

        Raises:
            RankLost: naming this rank alone if the others have formed a group without it.
        """
        ...

    def table(self, seq: int) -> Sequence[int]: ...

    def digest(self) -> bytes: ...

    def epoch(self) -> int: ...

    def free_blocks(self) -> int: ...

    def lost(self) -> Sequence[int]: ...

    def watch(self, told: Callable[[int, list[tuple[int, int, Sequence[int], list[int]]]], None]) -> None:
        """Call `told(epoch, rows)` in this process when a step has taken effect and before others know.

        A row is (seq, start, tokens, table) of a sequence that the step computes, blocks in own numbers. For
        the benchmark.
        """
        ...

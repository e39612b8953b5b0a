"""An implementation opened for timing: in process, with the prefix cache on or off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvproof.contract import BadInput, wrong_policy
from kvproof.subjects import Implementation, SubjectError, find
from kvproof.subjects.making import wrong_arguments
from kvproof.subjects.remote import RemoteFactory, Unserved

Make: TypeAlias = Callable[[int, int], Any]
MakeScheduler: TypeAlias = Callable[[int, int, int, int], Any]
MakeRanks: TypeAlias = Callable[[Sequence[int], int, Any], Any]
UNCACHED = "make_uncached"
"""Factory of the same implementation without its prefix cache."""
SCHEDULER = "make_scheduler"
"""Factory of its scheduler; `make_scheduler_X` belongs to `make_X`."""
RANKS = "make_ranks"
"""Factory of its tensor-parallel ranks in one object."""
RANK_PROCESS = "make_rank_process"
"""Factory of one rank in a process of its own."""


class Unsupported(Exception):
    """The subject does not offer what the cell needs; the message says what."""


class Wrong(Exception):
    """A result failed its check, so its time does not count; the message says what was wrong."""


@dataclass
class Subject:
    """Factories of one implementation and what it says of itself.

    make: None for one that is a scheduler or ranks only.
    spec: opens it in another process; empty if it cannot be.
    message_parts: says what a message of its ranks consists of.
    rank_process: opens one rank in another process; empty if it has no such factory.
    overhead: blocks that the pool needs beyond those a sequence may take (reserved, watermark).
    timed: for a program in another process: the result of a call, and the seconds it took in there.
    """

    name: str
    make: Make | None
    block_size: int
    version: str = ""
    spec: str = ""
    make_uncached: Make | None = None
    make_scheduler: MakeScheduler | None = None
    make_scheduler_uncached: MakeScheduler | None = None
    make_ranks: MakeRanks | None = None
    message_parts: Callable[[bytes], dict[str, int]] | None = None
    rank_process: str = ""
    timed: Callable[[Callable[[], Any]], tuple[Any, float]] | None = None
    capabilities: frozenset[str] = field(init=False, default=frozenset())
    overhead: int = field(init=False, default=0)
    lookahead: int = field(init=False, default=0)
    lazy: bool = field(init=False, default=False)
    exact: bool = field(init=False, default=True)
    """Whether what it takes can be reckoned to the block: not of one that takes ahead, or gives back behind a
    window, when it likes."""
    evicts: str = field(init=False, default="")

    def __post_init__(self) -> None:
        if self.make is None:
            return
        probe = self.make(64, self.block_size)
        policy = getattr(probe, "policy", None) or {}
        if wrong := wrong_policy(policy):
            raise SubjectError(f"{self.name}: {wrong}")
        self.capabilities = frozenset(probe.capabilities)
        self.overhead = _overhead(probe)
        self.lookahead = int(getattr(probe, "lookahead", 0))
        self.lazy = bool(getattr(probe, "lazy", False))
        self.exact = not (self.lookahead or self.lazy or "window" in self.capabilities)
        self.evicts = str(policy.get("evict", ""))

    def open(self, usable: int, caching: bool | None = None) -> Any:
        """A fresh manager in which sequences may take `usable` blocks.

        Args:
            usable: blocks, reserved ones and the watermark not counted.
            caching: as in `factory`.

        Raises:
            Unsupported: as in `factory`, or it refuses a pool of this size.
        """
        make, blocks = self.factory(caching), usable + self.overhead
        try:
            return make(blocks, self.block_size)
        except BadInput as e:
            raise Unsupported(f"no manager of {blocks} blocks: {e}") from e

    def factory(self, caching: bool | None) -> Make:
        """What makes its managers: with or without prefix cache, None as `make` does it.

        Raises:
            Unsupported: it has no prefix cache, or has one and no factory `make_uncached`, or is no
                manager.
        """
        if self.make is None:
            only = "a scheduler" if self.make_scheduler else "a group of ranks"
            raise Unsupported(f"no manager: it is {only} only")
        if caching and "prefix" not in self.capabilities:
            raise Unsupported("no prefix cache")
        if caching is False and "prefix" in self.capabilities:
            if self.make_uncached is None:
                raise Unsupported("caching cannot be switched off: no factory make_uncached")
            return self.make_uncached
        return self.make

    def open_scheduler(self, usable: int, max_seqs: int, max_tokens: int) -> Any:
        """A fresh scheduler whose requests may take `usable` blocks, reserved ones not counted.

        Args:
            usable: blocks; the watermark, which only admission keeps free, is one of them.
            max_seqs, max_tokens: budgets of a step.

        Raises:
            Unsupported: it has none.
        """
        if self.timed is not None:
            raise Unsupported("what a step is fed depends on its plan: no time inside the program")
        if self.make_scheduler is None:
            raise Unsupported(f"no scheduler: no factory {SCHEDULER}")
        probe = self.make_scheduler(64, self.block_size, max_seqs, max_tokens)
        reserved = len(list(getattr(probe, "reserved", ())))
        return self.make_scheduler(usable + reserved, self.block_size, max_seqs, max_tokens)

    def need(self, *capabilities: str) -> None:
        """Raises Unsupported if one of `capabilities` is not named by the subject."""
        absent = [c for c in capabilities if c not in self.capabilities]
        if absent:
            raise Unsupported(f"no capability {absent[0]}")


def _overhead(probe: Any) -> int:
    policy = getattr(probe, "policy", None) or {}
    return len(list(getattr(probe, "reserved", ()))) + int(policy.get("watermark", 0))


def blocks_for(tokens: int, block_size: int) -> int:
    """ceil(tokens / block_size)."""
    return -(-tokens // block_size)


def open_subject(implementation: Implementation, block_size: int) -> Subject:
    """Import an implementation and ask it what it can do.

    A factory named `make_scheduler...` opens a scheduler only, `make_ranks...` and one that takes three
    arguments ranks only; any other one a manager, and beside it the scheduler of that name and the ranks,
    if there are some.

    Raises:
        SubjectError: it cannot be imported, or makes no manager of this block size.
    """
    name, make = implementation.factory_name, implementation.factory()
    if isinstance(make, RemoteFactory):
        return _open_program(implementation, make, block_size)
    only = name.startswith(SCHEDULER)
    ranks = name.startswith(RANKS) or (not _takes(make, 2) and _takes(make, 3))
    variant = name.removeprefix("make") if name.startswith("make_") else ""
    process = f"{implementation.module}:{RANK_PROCESS}" if name in ("make", RANKS) else ""
    try:
        return Subject(
            name=implementation.name,
            make=None if only or ranks else make,
            block_size=block_size,
            version=implementation.version,
            spec=implementation.spec,
            make_uncached=None if only or ranks else _other(implementation, UNCACHED),
            make_scheduler=make if only else _other(implementation, SCHEDULER + variant),
            make_scheduler_uncached=_other(implementation, f"{SCHEDULER}_uncached"),
            make_ranks=make if ranks else None if only or variant else _other(implementation, RANKS),
            message_parts=_other(implementation, "message_parts"),
            rank_process=process if process and _other(implementation, RANK_PROCESS) else "",
        )
    except SubjectError:
        raise
    except Exception as e:
        raise SubjectError(
            f"{implementation.name}: no manager of 64 blocks of {block_size} tokens: {type(e).__name__}: {e}"
        ) from e


def _takes(make: Callable[..., Any], count: int) -> bool:
    return not wrong_arguments(make, (0,) * count)


def _open_program(implementation: Implementation, make: RemoteFactory, block_size: int) -> Subject:
    try:
        manager: Any = make(64, block_size)
        make.timed(manager.free_blocks)
        other = make.uncached()
        kept = "prefix" in other(64, block_size).capabilities
    except Unserved as e:
        raise SubjectError(f"{implementation.name}: no time is taken outside a program: {e}") from e
    except Exception as e:
        raise SubjectError(
            f"{implementation.name}: no manager of 64 blocks of {block_size} tokens: {e}"
        ) from e
    return Subject(
        name=implementation.name,
        make=make,
        block_size=block_size,
        spec=implementation.spec,
        make_uncached=None if kept else other,
        timed=make.timed,
    )


def _other(implementation: Implementation, factory: str) -> Callable[..., Any] | None:
    """Another factory of the same module, None if it has none."""
    try:
        return find(f"{implementation.module}:{factory}").factory()
    except SubjectError:
        return None

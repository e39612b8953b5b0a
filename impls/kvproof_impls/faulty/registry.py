"""The record of a planted fault, and the decorator that plants it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.ranks import Group
from kvproof_impls.reference.scheduler import Scheduler

Make: TypeAlias = (
    Callable[[int, int], Manager]
    | Callable[[int, int, int, int], Scheduler]
    | Callable[..., Group]
    | Callable[[], Any]
)
"""A factory of block managers from num_blocks and block_size, of schedulers from max_seqs and
max_tokens as well, of ranks from pools, block_size and network, or of kernels from nothing."""
Planted = TypeVar("Planted", bound=Make | type[Manager] | type[Scheduler] | type[Group])


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and only that."""

    name: str
    requirement: str
    """The requirement it breaks, whose tests must find it."""
    text: str
    """What is wrong, in one line."""
    model: str
    """The real fault it imitates: "owner/name#number" or "owner/name: what was seen"."""
    make: Make


FAULTS: dict[str, Fault] = {}


def fault(requirement: str, text: str, *, model: str) -> Callable[[Planted], Planted]:
    """Enter the decorated factory under its own name, or a class that is wrong: FreedTwice as freed_twice.

    A class of schedulers is made over a sound manager.
    """

    def plant(planted: Planted) -> Planted:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", planted.__name__).lower()
        if name in FAULTS:
            raise ValueError(f"two planted faults are named {name}")
        make: Make = planted
        if isinstance(planted, type) and issubclass(planted, Scheduler):
            make = _over_a_manager(planted)
        FAULTS[name] = Fault(name, requirement, text, model, make)
        return planted

    return plant


def _over_a_manager(kind: type[Scheduler]) -> Make:
    def make(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
        return kind(Manager(num_blocks, block_size), max_seqs, max_tokens)

    return make

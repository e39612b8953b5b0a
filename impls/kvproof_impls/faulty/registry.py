"""The record of a planted fault, and the decorator that plants it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.scheduler import Scheduler

Make: TypeAlias = Callable[[int, int], Manager] | Callable[[int, int, int, int], Scheduler]
"""A factory of block managers from num_blocks and block_size, or of schedulers from max_seqs and
max_tokens as well."""


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


def fault(requirement: str, text: str, *, model: str) -> Callable[[Make], Make]:
    """Enter the decorated factory under its own name."""

    def plant(make: Make) -> Make:
        name = make.__name__
        if name in FAULTS:
            raise ValueError(f"two planted faults are named {name}")
        FAULTS[name] = Fault(name, requirement, text, model, make)
        return make

    return plant

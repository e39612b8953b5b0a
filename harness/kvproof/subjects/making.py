"""Whether a factory takes the arguments of the profile that it is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from kvproof.records import Operation
from kvproof.subjects.network import SimulatedNetwork
from kvproof.subjects.rank_processes import GroupFactory, ProcessNetwork

PARAMETERS = {
    "manager": ("num_blocks", "block_size"),
    "scheduler": ("num_blocks", "block_size", "max_seqs", "max_tokens"),
    "ranks": ("pools", "block_size", "network"),
    "kernel": (),
}
"""What the factory of each profile is called with."""
TAKES = "the factory takes "
"""Begins the message about one that takes something else."""


def arguments(
    make: Callable[..., Any], shape: Sequence[Any], history: Sequence[Operation] = ()
) -> tuple[Any, ...]:
    """What a factory is called with for a case of this shape: ranks also get a network."""
    if not shape or not isinstance(shape[0], tuple):
        return tuple(shape)
    processes = isinstance(make, GroupFactory)
    return (*shape, ProcessNetwork(history) if processes else SimulatedNetwork(len(shape[0])))


def wrong_arguments(make: Callable[..., Any], arguments: Sequence[Any]) -> str:
    """What is wrong with calling `make` so, and which profile it is for; "" if it can be called."""
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # of C code: the call will tell
        return ""
    if _takes(signature, len(arguments)):
        return ""
    asked = next((p for p, names in PARAMETERS.items() if len(names) == len(arguments)), "")
    fits = next((p for p, names in PARAMETERS.items() if _takes(signature, len(names))), "")
    names = ", ".join(PARAMETERS.get(asked, ()))
    found = "(" + ", ".join(signature.parameters) + ")"
    hint = f"; for a {fits}'s factory give --profile {fits}" if fits else ""
    return f"{TAKES}{found}, and that of a {asked} is called with ({names}){hint}"


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True

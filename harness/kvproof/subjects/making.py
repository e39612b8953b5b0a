"""Whether a factory takes the arguments of the profile that it is asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from kvproof.records import Operation
from kvproof.subjects.network import SimulatedNetwork
from kvproof.subjects.rank_processes import ARGUMENTS, GroupFactory, ProcessNetwork

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


def offered(module: ModuleType) -> str:
    """Which factories a module has: what is defined there and takes the arguments of a profile, by name."""
    public = {n: v for n, v in vars(module).items() if callable(v) and not n.startswith("_")}
    own = [n for n, v in public.items() if getattr(v, "__module__", "") == module.__name__]
    fits = {n: profile for n in own or public if (profile := _profile(n, public[n]))}
    others = [f":{n}" for n in own or public if n not in fits]
    # make_ranks = Adapter: the name that is meant to be called stands for both.
    named = {n: p for n, p in fits.items() if n.startswith("make")} or fits
    if not named:
        return f"callables there: {', '.join(others) or 'none'}"
    good = ", ".join(f":{name} ({profile})" for name, profile in named.items())
    more = f"; other callables there: {', '.join(others)}" if others else ""
    return f"name {'the one' if len(named) == 1 else 'one'} that it has: {good}{more}"


def _profile(name: str, make: Callable[..., Any]) -> str:
    """That of a factory with parameters of these names; "" if it is none."""
    try:
        names = tuple(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return ""
    if names[: len(ARGUMENTS)] == ARGUMENTS:
        return "ranks"
    fits = [p for p, wanted in PARAMETERS.items() if wanted and names[: len(wanted)] == wanted]
    return fits[-1] if fits else "kernel" if not names and name.startswith("make") else ""


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True

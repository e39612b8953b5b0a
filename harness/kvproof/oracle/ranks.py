"""The model of a group: its sequences after each step that took effect, and which ranks belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Held:
    """One sequence."""

    tokens: tuple[int, ...]
    active: bool = True
    """It has blocks: it is not preempted."""


State = dict[int, Held]


@dataclass
class RankModel:
    """pools: blocks of each rank."""

    pools: tuple[int, ...]
    block_size: int
    state: State = field(default_factory=dict)
    epoch: int = 0
    members: set[int] = field(default_factory=set)
    after: State | None = None
    """What the step led to that ended with a rank lost: it took effect or not."""
    faulty: bool = False
    """A message was tampered with, or a rank ended or stopped."""

    def __post_init__(self) -> None:
        self.members = set(range(len(self.pools)))

    @property
    def capacity(self) -> int:
        return min(self.pools)

    def blocks(self, length: int) -> int:
        return -(-length // self.block_size)

    def fits(self, state: State) -> bool:
        """Even if no block is shared."""
        return sum(self.blocks(len(h.tokens)) for h in state.values() if h.active) <= self.capacity

    def applied(self, operations: Sequence[Sequence[Any]]) -> State | str:
        """The state after these operations, or what is wrong with them."""
        state, seen = dict(self.state), set()
        for operation in operations:
            name, seq = operation[0], operation[1]
            tokens = tuple(operation[2]) if len(operation) > 2 else ()
            if type(seq) is not int or seq < 0:
                return f"a sequence id {seq!r}"
            if seq in seen:
                return f"sequence {seq} twice"
            seen.add(seq)
            held = state.get(seq)
            if name in ("add", "append") and not tokens:
                return "no tokens"
            if name == "add":
                if held is not None:
                    return f"sequence {seq} again"
                state[seq] = Held(tokens)
                continue
            if held is None:
                return f"an unknown sequence {seq}"
            if name == "free":
                del state[seq]
            elif held.active == (name == "resume"):
                return f"{name} of a sequence that is{'' if held.active else ' not'} running"
            elif name == "append":
                state[seq] = Held(held.tokens + tokens)
            else:
                state[seq] = Held(held.tokens, name == "resume")
        return state


def structure(tables: dict[int, list[int]]) -> list[tuple[int, list[int]]]:
    """Tables with blocks numbered by first use: equal if the same positions share blocks."""
    names: dict[int, int] = {}
    return [
        (seq, [names.setdefault(block, len(names)) for block in table])
        for seq, table in sorted(tables.items())
    ]

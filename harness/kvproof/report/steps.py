"""What was seen at an operation, in words: of a scheduler a line a step, of ranks a line a rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LEFT_OUT = "left_out"
"""In the place of steps that were not kept: how many."""


def told(value: Any) -> Iterator[str]:
    """Lines about the value of an observation; none where it has neither steps nor ranks."""
    if isinstance(value, list):
        for step in value:
            if isinstance(step, dict):
                yield f"... {step[LEFT_OUT]} steps" if LEFT_OUT in step else _step(step)
    elif isinstance(value, dict) and "state" in value:
        yield from _ranks(value)


def _step(step: dict[str, Any]) -> str:
    """What a scheduler planned in a step, and what became of its requests."""
    plan = ", ".join(f"{rid}: [{lo}, {hi}) in {table}" for rid, lo, hi, table in step.get("rows", ()))
    ends = [(name, step.get(name)) for name in ("preempted", "rejected", "finished")]
    return f"plan {plan or 'nothing'}" + "".join(f"; {name} {rids}" for name, rids in ends if rids)


def _ranks(value: dict[str, Any]) -> Iterator[str]:
    """What each rank that runs holds."""
    for rank, one in value["state"].items():
        lost = f"  lost {one['lost']}" if one["lost"] else ""
        tables = ", ".join(f"{seq}: {list(table)}" for seq, table in one["tables"].items())
        yield f"rank {rank}: epoch {one['epoch']}  tables {{{tables}}}  free {one['free']}{lost}"
    for what in ("dead", "stopped"):
        if value.get(what):
            yield f"{what}: {', '.join(f'rank {rank}' for rank in value[what])}"

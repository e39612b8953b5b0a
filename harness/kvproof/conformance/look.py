"""A first look at a subject: its factory, and what it says of itself."""

from __future__ import annotations

from typing import Any, Protocol

from kvproof.records import Case
from kvproof.subjects import Implementation, SubjectError
from kvproof.subjects.growth import Growth
from kvproof.subjects.host import Outcome

FACTORIES = {"manager": "make", "scheduler": "make_scheduler", "ranks": "make_ranks", "kernel": "make"}
"""The factory of an implementation that is named without one, by profile."""
OF_ONE_RANK = "make_rank_process"
"""That of a rank in a process of its own."""
FIRST_SHAPES: dict[str, tuple[tuple[Any, ...], ...]] = {
    "manager": ((8, 4), (64, 16), (256, 16), (1024, 16), (4096, 256), (64, 1)),
    "scheduler": ((8, 4, 4, 16), (64, 16, 4, 64), (256, 16, 8, 256), (1024, 16, 8, 1024)),
    "ranks": (((8, 8), 4), ((64, 64), 16), ((1024, 1024), 16)),
    "kernel": ((),),
}
"""Arguments for a first look at a subject, until it serves one."""
_ANSWERS = ("OutOfBlocks", "Refused", "BadInput", "UnknownSequence", "ContractError")
"""How a factory refuses a shape."""


class Driven(Protocol):
    """A subject that answers: `subjects.host.Worker`, or its stand-in without a process."""

    implementation: Implementation
    call_limit: float

    def describe(self, *shape: Any) -> dict[str, Any]: ...

    def growth(self, name: str, sizes: tuple[int, ...]) -> Growth: ...

    def run(self, case: Case) -> Outcome: ...


def first_look(worker: Driven, profile: str) -> dict[str, Any]:
    """What a subject says of itself in the first shape that it serves.

    Raises:
        SubjectError: it serves none of them, or cannot be opened.
    """
    blocked: SubjectError | None = None
    for shape in FIRST_SHAPES[profile]:
        try:
            return worker.describe(*shape)
        except SubjectError as error:
            blocked = blocked or error
            if not any(f"{answer}: " in str(error) for answer in _ANSWERS):
                break  # no refusal of the shape
    assert blocked is not None
    raise blocked

"""A stand-in for the worker process, for implementations known not to hang or exit."""

from __future__ import annotations

from typing import Any

from kvproof.records import Case
from kvproof.subjects import Implementation, SubjectError, find
from kvproof.subjects.calls import no_clock
from kvproof.subjects.growth import measure_growth
from kvproof.subjects.host import CALL_LIMIT, Outcome, ended
from kvproof.subjects.making import arguments
from kvproof.subjects.worker import describe_subject, run_case


class InProcess:
    """Answers like subjects.host.Worker, without a process."""

    call_limit = CALL_LIMIT

    def __init__(self, where: str) -> None:
        self.implementation: Implementation = find(where)
        self.make = self.implementation.factory()

    def describe(self, *shape: Any) -> dict[str, Any]:
        try:
            return describe_subject(self.make(*arguments(self.make, shape)))
        except Exception as error:
            raise SubjectError(str(error)) from error

    def growth(self, name: str, sizes: tuple[int, ...]) -> Any:
        return measure_growth(self.make, name, sizes)

    def run(self, case: Case) -> Outcome:
        return ended(tuple(run_case(self.make, case, no_clock)))

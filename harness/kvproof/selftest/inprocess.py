"""A stand-in for the worker process, for implementations known not to exit."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from kvproof.records import Case
from kvproof.subjects import Implementation, SubjectError, find
from kvproof.subjects.calls import no_clock
from kvproof.subjects.growth import Growth, measure_growth
from kvproof.subjects.host import CALL_LIMIT, Outcome, ended
from kvproof.subjects.making import arguments
from kvproof.subjects.worker import describe_subject, run_case


class Hung(BaseException):
    """A call has used up its time; no Exception, which a subject may catch."""


class InProcess:
    """Answers like subjects.host.Worker, without a process.

    limit: CPU seconds of one call, after which it counts as hanging; None where none can hang.
    """

    call_limit = CALL_LIMIT

    def __init__(self, where: str, limit: float | None = None) -> None:
        self.implementation: Implementation = find(where)
        self.make = self.implementation.factory()
        self.limit = limit
        self._step = -1

    def describe(self, *shape: Any) -> dict[str, Any]:
        try:
            return describe_subject(self.make(*arguments(self.make, shape)))
        except Exception as error:
            raise SubjectError(str(error)) from error

    def growth(self, name: str, sizes: tuple[int, ...]) -> Growth:
        try:
            return measure_growth(self.make, name, sizes)
        except Exception as error:
            raise SubjectError(str(error)) from error

    def run(self, case: Case) -> Outcome:
        if self.limit is None:
            return ended(tuple(run_case(self.make, case, no_clock)))
        before = signal.signal(signal.SIGVTALRM, _hung)
        try:
            return ended(tuple(run_case(self.make, case, self._timed)))
        except Hung:
            step = self._step
        finally:
            signal.signal(signal.SIGVTALRM, before)
        short = case.model_copy(update={"history": case.history[: max(step, 0)]})
        seen = tuple(run_case(self.make, short, no_clock)) if short.history else ()
        return Outcome(seen, "timeout", step, f"no answer within {self.limit:g} s")

    @contextlib.contextmanager
    def _timed(self, step: int) -> Iterator[None]:
        assert self.limit is not None
        self._step = step
        signal.setitimer(signal.ITIMER_VIRTUAL, self.limit)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _hung(*_: object) -> None:
    raise Hung

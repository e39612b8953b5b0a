"""The pytest plugin: gives the tests their session, and nothing of pytest's own to the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvproof.conformance.session import Session
from kvproof.records import Case, Result, Verdict

ONE_OF = 7
"""Of the cases that cost real processes seconds one in so many runs, and all of them with --deep."""


class Plugin:
    """Passed to pytest.main; holds the session of one implementation."""

    def __init__(self, session: Session, advance: Callable[[int, int], None]) -> None:
        self.judging = session
        self.advance = advance
        """Told how many of how many tests are done."""
        self.total = self.done = 0
        self.broken: list[str] = []
        """Faults of the suite itself, which must never look like a verdict."""

    @pytest.hookimpl
    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "requirement(*ids): the requirements that the test judges")
        config.addinivalue_line("markers", "profile(name): the kind of subject that it judges")
        config.addinivalue_line("markers", "deep: runs with --deep only")

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = set(self.judging.settings.requirements)
        items[:] = [i for i in items if profile_of(i) == self.judging.settings.profile]
        if wanted:
            items[:] = [i for i in items if not cited(i) or cited(i) & wanted]
        if not self.judging.settings.deep:
            items[:] = [i for i in items if not is_deep(i)]
        items.sort(key=lambda i: (is_deep(i), not cited(i)))  # what is aimed first: a budget cuts the rest
        if "processes" in self.judging.gates and not self.judging.settings.deep:
            costly = [i for i in items if costs_seconds(i)]
            items[:] = [i for i in items if i not in costly or i in costly[::ONE_OF]]
        if self.judging.settings.shard:
            part, parts = self.judging.settings.shard
            items[:] = items[part - 1 :: parts]
        self.total = len(items)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        result = yield
        report = result.get_result()
        if call.excinfo is not None and not call.excinfo.errisinstance((Unmet, pytest.skip.Exception)):
            self.broken.append(f"{item.nodeid}\n{report.longreprtext}")
        if report.when == "teardown":
            self.done += 1
            self.advance(self.done, self.total)

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.append(f"{report.nodeid}\n{report.longreprtext}")

    @pytest.fixture(name="session")
    def judging_session(self) -> Session:
        return self.judging

    @pytest.fixture(name="check")
    def judging_check(self) -> Callable[[Any], None]:
        """Judges a case and fails the test if a result is not fit to pass."""
        return lambda case: require(self.judging.check(case))


class Unmet(Exception):
    """A requirement was not met: the verdict is in the result file."""


def require(results: Sequence[Result]) -> None:
    """Fail the test for a bad result.

    Raises:
        Unmet: one of them is FAIL, TIMEOUT or ERROR.
    """
    bad = [r for r in results if r.verdict in (Verdict.FAIL, Verdict.TIMEOUT, Verdict.ERROR)]
    if bad:
        raise Unmet("; ".join(f"{r.requirement} {r.verdict}" for r in bad))
    if results and all(r.verdict is Verdict.UNSUPPORTED for r in results):
        pytest.skip(results[0].reason)


def profile_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("profile")
    return str(mark.args[0]) if mark else "manager"


def costs_seconds(item: pytest.Item) -> bool:
    """A directed case in which messages or ranks are lost: real processes wait for them."""
    call: Any = getattr(item, "callspec", None)
    case = call.params.get("case") if call else None
    return isinstance(case, Case) and any("faults" in (op.args or {}) for op in case.history)


def is_deep(item: pytest.Item) -> bool:
    return item.get_closest_marker("deep") is not None


def cited(item: pytest.Item) -> set[str]:
    """Requirement ids that a test cites by its marks; none for the random histories."""
    return {str(i) for mark in item.iter_markers("requirement") for i in mark.args}

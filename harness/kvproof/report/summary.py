"""What a conformance file says: a verdict for each requirement, by area, and the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.records import SHORTEST, Level, Requirement, Result, Verdict, room_text
from kvproof.report.results import ResultFile, ResultsError

JUDGED = (
    Verdict.FAIL,
    Verdict.TIMEOUT,
    Verdict.ERROR,
    Verdict.XPASS,
    Verdict.XFAIL,
    Verdict.PASS,
    Verdict.UNSUPPORTED,
)
APART = (Verdict.PRECONDITION, Verdict.PLANNED, Verdict.NOT_RUN)
"""Shown beside the others, never as one of them: nothing was learned about the subject."""

BAD = (Verdict.FAIL, Verdict.TIMEOUT, Verdict.ERROR, Verdict.XPASS)
"""Verdicts that fail a run when the requirement is a MUST."""

_ORDER = {verdict: rank for rank, verdict in enumerate(Verdict)}

CAUSES = tuple(
    f"KVP-{name}"
    for name in (
        *("KERN-016", "KERN-006", "KERN-008", "KERN-001", "KERN-004", "KERN-002", "NUM-001", "KERN-007"),
        *("KERN-005", "KERN-003", "NUM-002", "KERN-013", "KERN-015", "KERN-012", "KERN-010"),
    )
)
"""Requirements of kernels, each before those that it makes fail when it is broken: most are judged by values,
which are wrong wherever a wrong slot was read."""
GROUND = ("PREFIX", "POOL", "FREE", "SHARE", "TABLE")
"""Areas whose findings count against what a case of another area is after, too: of histories of one length, a
wrong hit explains a block with two owners, and a broken pool "bad input changes nothing"."""
BY_THE_WAY = "KVP-NUM-001"
"""A wrong value in a case that aims at something else counts against it too: then it comes last."""


@dataclass(frozen=True)
class Failure:
    """A requirement that did not hold, with the case that shows it in the fewest operations."""

    requirement: Requirement
    result: Result
    others: tuple[str, ...]
    """Further cases with the same verdict."""

    @property
    def advisory(self) -> bool:
        """A SHOULD that does not hold: shown, and never fails the run. (An XPASS always does.)"""
        return self.requirement.level is Level.SHOULD and self.result.verdict is not Verdict.XPASS

    @property
    def cases(self) -> set[str]:
        """Every case with this verdict."""
        return {self.result.case.removesuffix(SHORTEST), *self.others}

    def explains(self, other: Failure) -> bool:
        """Whether the other may follow from this: it fails in no case in which this one holds.

        In kernels by the order of CAUSES: values are wrong wherever a wrong slot was read.
        """
        names = [self.requirement.id, other.requirement.id]
        if self.requirement.profile == "kernel" and set(names) <= set(CAUSES):
            return names == sorted(names, key=CAUSES.index)
        return other.cases <= self.cases

    def history(self) -> list[str]:
        """The operations, one a line; the one at which it was found is marked."""
        lines = []
        for step, operation in enumerate(self.result.history):
            mark = "  <- here" if step == self.result.step else ""
            lines.append(f"{step:>3}  {operation}{mark}")
        return lines

    def pool(self) -> str:
        """The pool of the history and the budget of a step, or "" if the case has none."""
        r = self.result
        return "" if r.num_blocks is None else room_text(r.num_blocks, r.block_size, r.max_seqs, r.max_tokens)


@dataclass(frozen=True)
class NotRun:
    """A requirement about which nothing was learned, and why."""

    requirement: Requirement
    verdict: Verdict
    why: str


@dataclass(frozen=True)
class Summary:
    """The verdicts of one conformance file."""

    file: ResultFile
    verdicts: dict[str, Verdict]
    """Requirement id -> worst verdict of its cases, sorted by id."""
    areas: dict[str, Counter[Verdict]]
    """Area -> number of requirements with each verdict."""
    failures: tuple[Failure, ...]
    """MUST before SHOULD; those that follow from no earlier finding, and the shortest, first."""
    known: tuple[Failure, ...]
    """Expected failures, with the reason given for each."""
    planned: tuple[Requirement, ...]
    not_run: tuple[NotRun, ...]

    @property
    def columns(self) -> tuple[Verdict, ...]:
        """Verdicts that occur, judged ones first; PASS and FAIL always."""
        seen = set(self.verdicts.values()) | {Verdict.PASS, Verdict.FAIL}
        return tuple(v for v in (*JUDGED, *APART) if v in seen)

    @property
    def headline(self) -> str:
        """One line: who was judged, how it ended, in numbers."""
        header = self.file.header
        name = f"{header.implementation} {header.version}".strip()
        advice = {f.requirement.id for f in self.failures if f.advisory}
        counts = Counter(verdict for key, verdict in self.verdicts.items() if key not in advice)
        numbers = [f"{counts[v]} {v}" for v in self.columns if counts[v]]
        numbers += [f"{len(advice)} SHOULD not met"] if advice else []
        return f"{name}: {self.ending} ({', '.join(numbers) or 'nothing judged'})"

    @property
    def ending(self) -> str:
        """How the run ended, in words."""
        footer = self.file.footer
        how = ending(footer.complete, footer.exit_status)
        return "not judged: what it needs is not here" if how == "passed" and not footer.must_run else how

    @property
    def counted(self) -> str:
        """How many cases there were, and how many of them the factory refused."""
        footer = self.file.footer
        left_out = sum(footer.left_out.values())
        return f"{footer.cases} cases" + (f", {left_out} of them left out" if left_out else "")

    def left_out(self) -> list[str]:
        """Cases in which nothing was made, by the factory's reason; the commonest first."""
        found = sorted(self.file.footer.left_out.items(), key=lambda item: (-item[1], item[0]))
        return [f"{count} cases left out, as the factory refuses their shape: {why}" for why, count in found]

    def first_look(self) -> str:
        """Which of several failures to look at before the others; "" for one or none."""
        must = [f for f in self.failures if not f.advisory]
        if len(must) < 2:
            return ""
        first = must[0]
        follow: list[str] = []
        apart: list[str] = []
        for other in must[1:]:
            (follow if first.explains(other) else apart).append(other.requirement.id.removeprefix("KVP-"))
        said = f"{len(must)} requirements failed: "
        said += f"look at {first.requirement.id} first ({first.requirement.title})"
        if follow:
            said += f"; may follow from it: {', '.join(follow)}"
        if apart:
            said += f"; seen where it holds, so look at them too: {', '.join(apart)}"
        return said

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of areas x verdicts; the last row is the sum, an empty cell a zero."""
        rows = [[area, *self._cells(counts)] for area, counts in self.areas.items()]
        total = sum(self.areas.values(), Counter[Verdict]())
        return ["area", *self.columns], [*rows, ["all", *self._cells(total)]]

    def margins(self) -> str:
        """For each requirement that is judged by numbers, the largest error over its bound; "" for none.

        Of cases without a finding; the others, in which values may be wrong, are counted.
        """
        numbers = [r for r in self.file.results if r.margin is not None]
        failed = {r.case.removesuffix(SHORTEST) for r in numbers if r.verdict is not Verdict.PASS}
        largest: dict[str, Result] = {}
        for result in numbers:
            if result.case.removesuffix(SHORTEST) not in failed:
                before = largest.setdefault(result.requirement, result)
                if (result.margin or 0) > (before.margin or 0):
                    largest[result.requirement] = result
        found = ", ".join(
            f"{name.removeprefix('KVP-')} {r.margin:.2g} ({r.case})" for name, r in sorted(largest.items())
        )
        count = f"{len(failed)} failing case{'s' * (len(failed) > 1)}"
        left_out = f"{count}, whose values may be wrong, left out" if failed else ""
        return "; ".join(filter(None, [found, left_out]))

    def _cells(self, counts: Counter[Verdict]) -> list[str]:
        return [str(counts[v]) if counts[v] else "" for v in self.columns]


def ending(complete: bool, exit_status: int) -> str:
    """The exit status in words."""
    if not complete:
        return "INCOMPLETE"
    return {0: "passed", 1: "FAILED", 2: "not run: wrong usage", 3: "EMPTY or incomplete"}.get(
        exit_status, f"ended with status {exit_status}"
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst verdict, in the order of `records.Verdict`; NOT_RUN for none."""
    return min(verdicts, key=_ORDER.__getitem__, default=Verdict.NOT_RUN)


def summarize(file: ResultFile) -> Summary:
    """Sum up a conformance file.

    Raises:
        ResultsError: it holds a benchmark, or a result of a requirement that its header lacks.
    """
    if file.header.what != "conformance":
        raise ResultsError(f"{file.path.name}: holds a {file.header.what} run; conformance is needed here")
    requirements = {r.id: r for r in sorted(file.header.requirements, key=lambda r: r.id)}
    cases: dict[str, list[Result]] = {key: [] for key in requirements}
    for result in file.results:
        if result.requirement not in cases:
            raise ResultsError(
                f"{file.path.name}: case {result.case}: the header has no requirement {result.requirement}"
            )
        cases[result.requirement].append(result)

    verdicts: dict[str, Verdict] = {}
    areas: dict[str, Counter[Verdict]] = {}
    for key, requirement in requirements.items():
        verdict = worst([result.verdict for result in cases[key]])
        if verdict is Verdict.NOT_RUN and requirement.status == "planned":
            verdict = Verdict.PLANNED
        verdicts[key] = verdict
        areas.setdefault(requirement.area, Counter())[verdict] += 1

    failures = [_failure(r, cases[k], verdicts[k]) for k, r in requirements.items() if verdicts[k] in BAD]
    aims = {case.id: case.aim for case in file.cases}
    found: dict[tuple[str, ...], set[str]] = {}
    for result in file.results:
        found.setdefault(_said(result), set()).add(result.requirement)

    def order(f: Failure) -> tuple[Any, ...]:
        ground = GROUND.index(f.requirement.area) if f.requirement.area in GROUND else len(GROUND)
        own = set(aims.get(f.result.case.removesuffix(SHORTEST), ()))
        # A finding counts against what its case is after, too: whose it is comes first.
        borrowed = f.requirement.id in own and not found[_said(f.result)] <= own
        first = f.advisory, bool(f.result.after), borrowed, *_cause(f, aims)
        return *first, len(f.result.history), ground, f.requirement.id

    failures.sort(key=order)
    # A requirement that fails elsewhere may have known failures besides: list them all the same.
    known = [
        _failure(r, cases[k], Verdict.XFAIL)
        for k, r in requirements.items()
        if any(result.verdict is Verdict.XFAIL for result in cases[k])
    ]
    known.sort(key=order)
    skipped = (Verdict.UNSUPPORTED, Verdict.PRECONDITION, Verdict.NOT_RUN)
    return Summary(
        file=file,
        verdicts=verdicts,
        areas=areas,
        failures=tuple(failures),
        known=tuple(known),
        planned=tuple(r for k, r in requirements.items() if verdicts[k] is Verdict.PLANNED),
        not_run=tuple(
            NotRun(r, verdicts[k], _why(r, cases[k], verdicts[k], file.header.capabilities))
            for k, r in requirements.items()
            if verdicts[k] in skipped
        ),
    )


def _said(result: Result) -> tuple[str, ...]:
    """What a finding says of its case: the same in each requirement that it counts against."""
    return result.case.removesuffix(SHORTEST), result.expected, result.got


def _cause(failure: Failure, aims: Mapping[str, Sequence[str]]) -> tuple[bool, int]:
    """Sorts a failure before those that may follow from it; all alike where there is no order."""
    name = failure.requirement.id
    by_the_way = name == BY_THE_WAY and not any(name in aims.get(case, ()) for case in failure.cases)
    known = failure.requirement.profile == "kernel" and name in CAUSES
    return by_the_way, CAUSES.index(name) if known else len(CAUSES)


def shown_first(result: Result) -> tuple[bool, bool, int, bool, str]:
    """Sorts the case that explains a failure best first: a finding that may follow from an earlier one
    explains less than one that stands alone, and a case without its history less than any with it."""
    history = result.history
    return bool(result.after), not history, len(history), not result.replay, result.case


def _failure(requirement: Requirement, results: list[Result], verdict: Verdict) -> Failure:
    found = sorted((result for result in results if result.verdict is verdict), key=shown_first)
    shown = found[0].case.removesuffix(SHORTEST)
    others = dict.fromkeys(case for r in found[1:] if (case := r.case.removesuffix(SHORTEST)) != shown)
    return Failure(requirement, found[0], tuple(others))


def _why(
    requirement: Requirement, results: list[Result], verdict: Verdict, capabilities: tuple[str, ...]
) -> str:
    lacking = [name for name in requirement.needs if name not in capabilities]
    if lacking and verdict is not Verdict.PRECONDITION:  # nobody has asked it what it can do
        return f"needs {', '.join(lacking)}"
    reasons = {result.reason for result in results if result.verdict is verdict and result.reason}
    if reasons:
        return min(reasons, key=lambda reason: (len(reason), reason))  # the least that would change it
    return "no case of it was run" if verdict is Verdict.NOT_RUN else "no reason was given"

"""Of all findings in a history, the first of each requirement counts."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.records import Case, Finding


def first_of_each(case: Case, findings: Iterable[Finding]) -> list[Finding]:
    """In order of operation, the first finding of each requirement.

    A finding of a requirement that the case `stands_for` counts against the case's aims as well.
    """
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.requirement, finding)
    for finding in sorted(first.values(), key=lambda f: f.step):
        if finding.requirement in case.stands_for:
            for aim in case.aim:
                first.setdefault(aim, finding.model_copy(update={"requirement": aim}))
    return sorted(first.values(), key=lambda f: (f.step, f.requirement))

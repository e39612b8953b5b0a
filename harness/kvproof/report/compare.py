"""Which verdicts differ between two conformance files."""

from __future__ import annotations

from kvproof.records import Verdict
from kvproof.report.results import ResultFile, ResultsError
from kvproof.report.summary import BAD, summarize


def changes(before: ResultFile, after: ResultFile) -> tuple[int, list[str]]:
    """(how many are worse, one line for each requirement whose verdict differs).

    Raises:
        ResultsError: one of them is of a run that did not end.
    """
    for file in (before, after):
        if not file.footer.complete:
            raise ResultsError(f"{file.path.name}: the run did not end; nothing can be compared with it")
    old, new = summarize(before).verdicts, summarize(after).verdicts
    lines, worse = [], 0
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key, Verdict.NOT_RUN), new.get(key, Verdict.NOT_RUN)
        if a is b:
            continue
        bad = (b in BAD and a not in BAD) or (a is Verdict.PASS and b is not Verdict.PASS)
        worse += bad
        word = "broken" if bad else "fixed" if b is Verdict.PASS else "changed"
        lines.append(f"{word:<8}{key}: {a} -> {b}")
    return worse, lines

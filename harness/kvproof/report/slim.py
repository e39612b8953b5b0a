"""A conformance file made small enough to be committed: what a report shows of it, and no more."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

from kvproof.records import SHORTEST, Header, Result, Verdict
from kvproof.report.results import ResultFile, ResultsError, ResultWriter
from kvproof.report.summary import BAD, shown_first

OTHERS = 3
"""Further cases of a failing requirement that are named, without their histories."""
FAILURES = (*BAD, Verdict.XFAIL)


def slim(file: ResultFile, to: Path) -> None:
    """Write `file` to `to` with one line for each requirement that holds or was not judged, and for each that
    failed the case that reports show, whole, and the names of a few others. Cases are left out.

    Verdicts, and counts of the footer, stay as they are. Paths of the machine it ran on go.

    Raises:
        ResultsError: it is not a conformance file, or `to` is the file itself.
        OSError: `to` cannot be written.
    """
    if file.header.what != "conformance":
        raise ResultsError(f"{file.path}: holds a {file.header.what} run; only conformance is made smaller")
    if to.resolve() == file.path.resolve():
        raise ResultsError(f"{to}: is the file to be read; name another one")
    command = _portable(file.header.command)
    with ResultWriter(to, file.header.model_copy(update={"command": command})) as writer:
        for result in _kept(file):
            writer.write(result)
        writer.close(file.footer)


def _kept(file: ResultFile) -> list[Result]:
    groups: dict[tuple[str, Verdict], list[Result]] = {}
    for r in file.results:
        groups.setdefault((r.requirement, r.verdict), []).append(r)
    kept = []
    for (requirement, verdict), results in groups.items():
        if verdict not in FAILURES:
            best = max(results, key=lambda r: r.margin or 0)  # reports tell the largest margin
            kept.append(_short(best))
            continue
        results.sort(key=shown_first)
        whole, named = results[0], Counter([results[0].case.removesuffix(SHORTEST)])
        kept.append(whole.model_copy(update={"replay": again(file.header, requirement), "vector": ""}))
        for r in results[1:]:
            case = r.case.removesuffix(SHORTEST)
            named[case] += 1
            if named[case] == 1 and len(named) <= OTHERS + 1:
                kept.append(_short(r))
    return kept


def _short(r: Result) -> Result:
    gone = {"history": (), "observed": (), "slot": None, "step": None, "replay": "", "vector": ""}
    return r.model_copy(update=gone | {"milliseconds": round(r.milliseconds, 1)})


def again(header: Header, requirement: str) -> str:
    """The command that judges a requirement anew, where no history was saved to be replayed."""
    checkout = " --checkout PATH" if "--checkout" in _portable(header.command).split() else ""
    who = f"--impl {shlex.quote(header.implementation)} --profile {header.profile}{checkout}"
    return f"kvproof conformance {who} --requirement {requirement}"


def _portable(command: str) -> str:
    """The command without places of one machine."""
    command = re.sub(r" --results[ =]\S+", "", command)
    return re.sub(r"(--checkout)[ =]\S+", r"\1 PATH", command)

"""Known failures of an implementation: `known.toml` beside its adapter, each with its reason.

[[known]]
requirement = "KVP-PREFIX-004"
reason = "the whole prompt counts as cached (owner/name#144)"
case = "prefix/whole-prompt-1x2"   # optional: this case only
expires = "2027-03-01"             # optional: the last day on which it excuses
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from kvproof.records import SHORTEST, Result, Verdict

FIELDS = ("requirement", "reason", "case", "expires")
FAILED = frozenset({Verdict.FAIL, Verdict.ERROR, Verdict.TIMEOUT})
"""A defect may show as an exception or as a hang."""


class LedgerError(ValueError):
    """known.toml cannot be used; the message names the file and the entry."""


@dataclass(frozen=True)
class Known:
    """One failure that is expected."""

    requirement: str
    reason: str
    case: str = ""
    expires: date | None = None
    expired: bool = False

    def covers(self, result: Result) -> bool:
        return self.requirement == result.requirement and self.case in (
            "",
            result.case.removesuffix(SHORTEST),
        )


def load(
    path: Path,
    requirements: Collection[str],
    cases: Collection[str],
    drawn: re.Pattern[str],
    today: date | None = None,
) -> list[Known]:
    """The entries of a ledger; none if there is no file.

    Args:
        path: known.toml.
        requirements: ids that exist.
        cases: names of cases that exist.
        drawn: names of cases that are drawn at random, and may exist.
        today: default: the day it is.

    Raises:
        LedgerError: it is no TOML; an entry lacks its reason, has a field too many, a date that is none,
            or names a requirement or case that does not exist.
    """
    if not path.is_file():
        return []
    today = today or date.today()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"{path}: not TOML: {error}") from None
    entries = tables.pop("known", [])
    if tables or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise LedgerError(
            f"{path}: may hold [[known]] tables only; got {', '.join(tables) or 'another known'}"
        )
    known = []
    for number, entry in enumerate(entries, 1):
        where = f"{path}: entry {number}"
        extra = set(entry) - set(FIELDS)
        if extra or not all(isinstance(entry.get(f), str) and entry[f] for f in FIELDS[:2]):
            raise LedgerError(
                f"{where}: needs requirement and reason, may have case and expires; got {entry}"
            )
        requirement, case = entry["requirement"], str(entry.get("case", ""))
        if requirement not in requirements:
            raise LedgerError(f"{where}: no requirement {requirement!r}{_near(requirement, requirements)}")
        if case and case not in cases and not drawn.fullmatch(case):
            raise LedgerError(f"{where}: no case {case!r}{_near(case, cases)}")
        expires = _day(entry.get("expires"), where)
        known.append(
            Known(requirement, entry["reason"], case, expires, expires is not None and expires < today)
        )
    return known


def _day(value: object, where: str) -> date | None:
    if value is None:
        return None
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise LedgerError(f'{where}: expires is a day, "YYYY-MM-DD"; got {value!r}') from None


def _near(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f"; near it: {', '.join(near)}" if near else ""


def settle(result: Result, known: Iterable[Known]) -> Result:
    """A failure becomes XFAIL where the ledger has it; an entry that has expired says so instead.

    Its reason takes the place of the failure's own, which is kept as what was got if nothing else was.
    """
    covering = [entry for entry in known if entry.covers(result)] if result.verdict in FAILED else []
    for entry in covering:
        if not entry.expired:
            got = result.got or (f"{result.verdict}: {result.reason}" if result.reason else "")
            return result.model_copy(update={"verdict": Verdict.XFAIL, "reason": entry.reason, "got": got})
    for entry in covering:
        said = f"known.toml excused this until {entry.expires}: {entry.reason}"
        return result.model_copy(update={"reason": "; ".join(filter(None, (said, result.reason)))})
    return result


def stale(results: Iterable[Result], known: Iterable[Known]) -> list[Result]:
    """An XPASS for every entry whose failure was not seen though its requirement was judged."""
    seen = list(results)
    out = []
    for entry in known:
        # What could not run here, or broke off, says nothing about the failure.
        judged = {r.verdict for r in seen if entry.covers(r)}
        if Verdict.PASS in judged and not judged & {Verdict.XFAIL, *FAILED}:
            out.append(
                Result(
                    case=entry.case or "known.toml",
                    requirement=entry.requirement,
                    verdict=Verdict.XPASS,
                    reason=f"known.toml expects a failure that no longer comes: {entry.reason}",
                )
            )
    return out

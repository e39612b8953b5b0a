"""Known failures of an implementation: `known.toml` beside its adapter, each with its reason.

[[known]]
requirement = "KVP-PREFIX-004"
reason = "the whole prompt counts as cached (owner/name#144)"
case = "prefix/whole-prompt-1x2"   # optional: this case only
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvproof.records import Result, Verdict


class LedgerError(ValueError):
    """known.toml cannot be used; the message names the file and the entry."""


@dataclass(frozen=True)
class Known:
    """One failure that is expected."""

    requirement: str
    reason: str
    case: str = ""

    def covers(self, result: Result) -> bool:
        return self.requirement == result.requirement and self.case in ("", result.case)


def load(path: Path, requirements: Iterable[str]) -> list[Known]:
    """The entries of a ledger; none if there is no file.

    Raises:
        LedgerError: an entry lacks its reason, or names a requirement that does not exist.
    """
    if not path.is_file():
        return []
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("known", [])
    known, ids = [], set(requirements)
    for number, entry in enumerate(entries, 1):
        extra = set(entry) - {"requirement", "reason", "case"}
        if extra or not entry.get("reason") or not entry.get("requirement"):
            raise LedgerError(
                f"{path.name}: entry {number}: needs requirement and reason, may have case; got {entry}"
            )
        if entry["requirement"] not in ids:
            raise LedgerError(f"{path.name}: entry {number}: no requirement {entry['requirement']}")
        known.append(Known(entry["requirement"], entry["reason"], entry.get("case", "")))
    return known


def settle(result: Result, known: Iterable[Known]) -> Result:
    """FAIL becomes XFAIL where the ledger has it."""
    for entry in known:
        if result.verdict is Verdict.FAIL and entry.covers(result):
            return result.model_copy(update={"verdict": Verdict.XFAIL, "reason": entry.reason})
    return result


def stale(results: Iterable[Result], known: Iterable[Known]) -> list[Result]:
    """An XPASS for every entry whose failure was not seen though its requirement was judged."""
    seen = list(results)
    out = []
    for entry in known:
        judged = [r for r in seen if entry.covers(r)]
        if judged and not any(r.verdict is Verdict.XFAIL for r in judged):
            out.append(
                Result(
                    case=entry.case or "known.toml",
                    requirement=entry.requirement,
                    verdict=Verdict.XPASS,
                    reason=f"known.toml expects a failure that no longer comes: {entry.reason}",
                )
            )
    return out

"""What a claim is, and all of them in the order of the chapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain


class Verdict(StrEnum):
    HOLDS = "holds"
    FAILS = "does not hold"
    GPU = "needs a GPU"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Claim:
    """A figure or statement of the chapter.

    said: the chapter's figure. found: what is so, and by what it was found.
    """

    section: str
    claim: str
    said: str
    found: str
    verdict: Verdict


def judged(section: str, claim: str, said: str, found: str, holds: bool) -> Claim:
    """A claim that was looked at."""
    return Claim(section, claim, said, found, Verdict.HOLDS if holds else Verdict.FAILS)


def check(tell: Callable[[Claim], object] = lambda claim: None) -> list[Claim]:
    """Every claim, counted or measured now; takes some seconds where a kernel can run.

    Args:
        tell: called with each as it is known.

    Raises:
        SubjectError: the reference implementation is not installed.
    """
    from kvproof.claims.counted import counted
    from kvproof.claims.measured import measured

    found = []
    for claim in chain(counted(), measured()):
        tell(claim)
        found.append(claim)
    return sorted(found, key=lambda c: c.section)

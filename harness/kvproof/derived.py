"""Records of what is made from result files: the history of runs, implementations side by side."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvproof.records import Record, Requirement, Verdict


class Past(Record):
    """One line of a history: what one implementation came to in one run."""

    schema_version: int = 1
    started: str
    commit: str | None
    cpu: str
    what: Literal["conformance", "bench"]
    implementation: str
    profile: str
    verdicts: dict[str, int] = Field(default_factory=dict)
    """Verdict -> requirements."""
    failing: tuple[str, ...] = ()
    """MUST requirements that did not hold."""
    points: dict[str, float] = Field(default_factory=dict)
    """Point of the benchmark -> median in turns of the calibration loop, or as a ratio to the control."""


class Matrix(Record):
    """Several implementations of one profile in one run: a file of its own beside their result files."""

    kind: Literal["matrix"] = "matrix"
    schema_version: int = 1
    profile: str
    implementations: tuple[str, ...]
    versions: tuple[str, ...]
    files: tuple[str, ...]
    """Names of their result files, in the same folder."""
    requirements: tuple[Requirement, ...]
    verdicts: dict[str, tuple[Verdict, ...]]
    """Requirement id -> its verdict for each implementation, in their order."""

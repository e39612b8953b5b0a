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


class Failed(Record):
    """A requirement that did not hold, in a document of a command."""

    requirement: str
    title: str
    verdict: Verdict
    must: bool
    expected: str
    got: str
    reason: str
    replay: str
    """The line that runs it again, where it was saved."""


class Told(Record):
    """What one result file came to."""

    path: str
    what: Literal["conformance", "bench"]
    implementation: str
    version: str
    profile: str
    exit_status: int
    verdicts: dict[str, int] = Field(default_factory=dict)
    """Verdict -> requirements; of conformance."""
    failures: tuple[Failed, ...] = ()
    """The one to look at first is the first; known failures are not among them."""
    points: int = 0
    """Of a benchmark: how many have a number."""
    void: str = ""
    """Of a benchmark: why none of its times counts."""


class Differing(Record):
    """One line of a comparison."""

    word: str
    """broken, slower, changed, gone, new, unclear, fixed or faster."""
    what: str
    worse: bool
    """A verdict for the worse."""


class Claimed(Record):
    """A figure of the chapter beside what was found here."""

    section: str
    claim: str
    said: str
    """The chapter's figure."""
    found: str
    """What is so, and by what it was found."""
    verdict: Literal["holds", "does not hold", "needs a GPU", "not run"]


class Document(Record):
    """What a command prints with `--json`: one document, and nothing else on standard output."""

    kind: Literal["document"] = "document"
    schema_version: int = 1
    command: Literal["conformance", "bench", "compare", "report", "export", "history", "merge", "claims"]
    exit_status: int
    report: str = ""
    """The folder of the run or export, the first page of the site, or the history; empty where nothing was
    written."""
    files: tuple[Told, ...] = ()
    differences: tuple[Differing, ...] = ()
    """Of a comparison; of a history, what has changed for good."""
    times: dict[str, int] = Field(default_factory=dict)
    """Of a comparison: FASTER, SAME, SLOWER, UNCLEAR, INVALID -> points."""
    claims: tuple[Claimed, ...] = ()
    """Of `kvproof claims`, in the order of the chapter."""
    notes: tuple[str, ...] = ()
    """Of a comparison: what holds for all of it, such as two machines; of an export: what was left out."""

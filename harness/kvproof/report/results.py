"""Result files: JSON lines, the header first, a record a line, the footer last.

Lines are flushed as they are written, so that a run that dies leaves what it had found. A file
without a footer is incomplete and is refused as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from kvproof.records import Footer, Header, Judged, Level, Line, Requirement, Result, Sample, Verdict

FAILING = frozenset({Verdict.FAIL, Verdict.TIMEOUT, Verdict.ERROR, Verdict.XPASS})
"""Verdicts of which one fails a MUST."""
KINDS = ("header", "case", "result", "sample", "footer")
_LINE: TypeAdapter[Header | Judged | Result | Sample | Footer] = TypeAdapter(Line)


class ResultsError(ValueError):
    """A result file cannot be used; the message names the file and the line."""


class NoHeader(ResultsError):
    """The first line is not a header, or the file is empty."""


class Incomplete(ResultsError):
    """There is no footer: the run died, or is still going on."""


class UnknownKind(ResultsError):
    """A line is of a kind that this version does not know."""


class BadLine(ResultsError):
    """A line is not JSON, lacks a field, has one too many, or stands where it must not."""


@dataclass(frozen=True)
class ResultFile:
    """A complete result file."""

    path: Path
    header: Header
    results: tuple[Result, ...]
    samples: tuple[Sample, ...]
    cases: tuple[Judged, ...]
    footer: Footer


class ResultWriter:
    """Writes a result file line by line.

    Use it in a `with`; leaving that without `close(footer)` leaves the file incomplete on purpose.
    """

    def __init__(self, path: Path, header: Header) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._stream: TextIO | None = path.open("w", encoding="utf-8", newline="\n")
        self._put(header)

    def write(self, record: Judged | Result | Sample) -> None:
        """Append one record.

        Raises:
            ResultsError: the file is closed.
        """
        self._put(record)

    def close(self, footer: Footer) -> None:
        """Append the footer and close the file.

        Raises:
            ResultsError: the file is closed already.
        """
        self._put(footer)
        self._end()

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _put(self, record: Header | Judged | Result | Sample | Footer) -> None:
        if self._stream is None:
            raise ResultsError(f"{self.path.name}: the file is closed; nothing may follow the footer")
        try:
            text = record.model_dump_json()
        except PydanticSerializationError:  # a text of the subject that UTF-8 has no bytes for
            text = json.dumps(_encodable(record.model_dump(mode="json")))
        self._stream.write(text + "\n")
        self._stream.flush()

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _encodable(value: Any) -> Any:
    """The value with lone surrogates in its texts written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def read(path: Path) -> ResultFile:
    """Read a complete result file.

    Raises:
        NoHeader, Incomplete, UnknownKind, BadLine: see there.
        OSError: the file cannot be opened.
    """
    header: Header | None = None
    footer: Footer | None = None
    results: list[Result] = []
    samples: list[Sample] = []
    cases: list[Judged] = []
    with path.open(encoding="utf-8") as stream:
        for number, text in enumerate(stream, 1):
            where = f"{path.name}:{number}"
            if footer is not None:
                raise BadLine(f"{where}: a line behind the footer")
            line = _parse(text, where)
            if header is None:
                if not isinstance(line, Header):
                    raise NoHeader(f"{where}: the first line is a {line.kind}, not a header")
                header = line
            elif isinstance(line, Header):
                raise BadLine(f"{where}: a second header")
            elif isinstance(line, Result):
                results.append(line)
            elif isinstance(line, Judged):
                cases.append(line)
            elif isinstance(line, Sample):
                samples.append(line)
            else:
                footer = line
    if header is None:
        raise NoHeader(f"{path.name}: the file is empty")
    if footer is None:
        found = f"{len(results)} results and {len(samples)} samples"
        raise Incomplete(f"{path.name}: no footer after {found}: the run did not end")
    return ResultFile(path, header, tuple(results), tuple(samples), tuple(cases), footer)


def _parse(text: str, where: str) -> Header | Judged | Result | Sample | Footer:
    try:
        return _LINE.validate_json(text, strict=False)
    except ValidationError:
        return _explain(text, where)


def _explain(text: str, where: str) -> Header | Judged | Result | Sample | Footer:
    """Read a line that did not validate once more, to say what is wrong with it."""
    try:
        data: Any = json.loads(text)
    except json.JSONDecodeError as error:
        # The last line of a killed run is cut short: no newline.
        if not text.endswith("\n"):
            raise Incomplete(f"{where}: the line is cut short: the run did not end") from None
        raise BadLine(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(data, dict):
        raise BadLine(f"{where}: a {type(data).__name__} where an object is expected")
    if data.get("kind") not in KINDS:
        raise UnknownKind(f"{where}: kind {data.get('kind')!r}; known: {', '.join(KINDS)}")
    try:
        return _LINE.validate_python(data, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BadLine(f"{where}: {field}: {first['msg']}") from None


def tally(results: Iterable[Result], requirements: Iterable[Requirement]) -> tuple[int, int, int]:
    """(MUST requirements that ran, those that failed, exit status) of a complete run."""
    levels = {r.id: r.level for r in requirements}
    seen: dict[str, set[Verdict]] = {}
    for result in results:
        seen.setdefault(result.requirement, set()).add(result.verdict)
    must = {r: v for r, v in seen.items() if levels[r] is Level.MUST}
    ran = sum(bool(v - {Verdict.UNSUPPORTED}) for v in must.values())
    failed = sum(bool(v & FAILING) for v in must.values())
    stale = any(Verdict.XPASS in v for v in seen.values())
    return ran, failed, 3 if not ran else 1 if failed or stale else 0

"""Result files survive, broken ones are refused by name, and reports say what they hold."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from kvproof import spec
from kvproof.records import Environment, Footer, Header, Operation, Requirement, Result, Sample, Verdict
from kvproof.report import markdown, terminal
from kvproof.report.results import (
    BadLine,
    Incomplete,
    NoHeader,
    ResultFile,
    ResultsError,
    ResultWriter,
    UnknownKind,
    read,
)
from kvproof.report.summary import summarize, worst

FOOTER = Footer(complete=True, cases=3, must_run=2, failed=1, exit_status=1, seconds=1.5)


def requirement(name: str, **fields: object) -> Requirement:
    base = {
        "id": name,
        "title": f"title of {name}",
        "text": f"{name} MUST hold | always.",
        "why": "because",
        "profile": "manager",
    }
    return Requirement.model_validate({**base, **fields})


def header(*requirements: Requirement, what: str = "conformance") -> Header:
    environment = Environment(
        kvproof="0.0",
        python="3.11",
        platform="linux",
        cpu="some",
        cores=2,
        memory_gib=1.0,
        packages={},
        missing={"torch": "kernel profile and rank processes"},
    )
    return Header.model_validate(
        {
            "what": what,
            "implementation": "subject",
            "version": "1.2",
            "capabilities": ("fork", "refcount"),
            "seed": 7,
            "started": "2026-01-01T00:00:00+00:00",
            "command": "kvproof conformance --impl subject",
            "environment": environment,
            "requirements": requirements,
        }
    )


def result(name: str, case: str, verdict: str, length: int = 0, **fields: object) -> Result:
    history = tuple(Operation(op="add", seq=i, tokens=(1, 2)) for i in range(length))
    base = {"case": case, "requirement": name, "verdict": verdict, "history": history}
    return Result.model_validate({**base, **fields})


def written(path: Path, head: Header, *records: Result | Sample, footer: Footer = FOOTER) -> ResultFile:
    with ResultWriter(path, head) as writer:
        for record in records:
            writer.write(record)
        writer.close(footer)
    return read(path)


@pytest.fixture
def file(tmp_path: Path) -> ResultFile:
    return written(
        tmp_path / "deep" / "run.jsonl",
        header(
            requirement("KVP-POOL-001"),
            requirement("KVP-POOL-002"),
            requirement("KVP-POOL-003", level="SHOULD"),
            requirement("KVP-SHARE-001", needs=("fork",)),
            requirement("KVP-BATCH-001", needs=("batch",)),
            requirement("KVP-KERN-001", status="planned"),
            requirement("KVP-TABLE-001"),
            requirement("KVP-DATA-001"),
        ),
        result("KVP-POOL-001", "long", "FAIL", 5, num_blocks=4, block_size=2, step=4),
        result(
            "KVP-POOL-001",
            "short",
            "FAIL",
            2,
            num_blocks=4,
            block_size=2,
            step=1,
            expected="4 [free]",
            got="3 [free]",
            replay="kvproof replay x",
        ),
        result("KVP-POOL-001", "other", "PASS"),
        result("KVP-POOL-002", "a", "PASS"),
        result("KVP-POOL-002", "b", "UNSUPPORTED"),
        result("KVP-POOL-003", "slow", "FAIL", got="slope 0.9"),
        result("KVP-SHARE-001", "k", "XFAIL", reason="no copy yet"),
        result("KVP-BATCH-001", "u", "UNSUPPORTED"),
        result("KVP-DATA-001", "p", "PRECONDITION", reason="needs torch"),
        footer=FOOTER,
    )


# ---------------------------------------------------------------- files


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    head = header(requirement("KVP-POOL-001"))
    one = result("KVP-POOL-001", "a", "FAIL", 3, expected="\u2028 x\ny", got='"')
    sample = Sample(
        implementation="subject",
        cell="decode_step",
        parameters={"sequences": 8},
        unit="ns",
        median=1.0,
        low=0.5,
        high=2.0,
        rounds=3,
    )
    file = written(tmp_path / "run.jsonl", head, one, sample)
    assert (file.header, file.results, file.samples, file.footer) == (head, (one,), (sample,), FOOTER)


def test_lines_are_on_disk_before_the_run_ends(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with ResultWriter(path, header(requirement("KVP-POOL-001"))) as writer:
        assert len(path.read_text(encoding="utf-8").splitlines()) == 1
        writer.write(result("KVP-POOL-001", "a", "PASS"))
        assert len(path.read_text(encoding="utf-8").splitlines()) == 2
    with pytest.raises(Incomplete, match=r"run\.jsonl: no footer after 1 results"):
        read(path)


def test_nothing_follows_the_footer(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path / "run.jsonl", header())
    writer.close(FOOTER)
    with pytest.raises(ResultsError, match="closed"):
        writer.write(result("KVP-POOL-001", "a", "PASS"))
    with pytest.raises(ResultsError, match="closed"):
        writer.close(FOOTER)


def test_every_truncation_is_refused(file: ResultFile, tmp_path: Path) -> None:
    whole = file.path.read_bytes()
    path = tmp_path / "cut.jsonl"
    # All cuts at line ends and some inside lines; only the missing last newline does no harm.
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    for cut in {0, 1, *ends[:-1], *(end - 2 for end in ends), *range(0, len(whole) - 1, 97)}:
        path.write_bytes(whole[:cut])
        with pytest.raises((Incomplete, NoHeader)):
            read(path)
    path.write_bytes(whole[:-1])
    assert read(path).footer == FOOTER


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda lines: [], NoHeader, "the file is empty"),
        (lambda lines: lines[1:], NoHeader, r"run\.jsonl:1: the first line is a result"),
        (lambda lines: lines[:-1], Incomplete, "no footer"),
        (lambda lines: [lines[0], *lines], BadLine, r"run\.jsonl:2: a second header"),
        (lambda lines: [*lines, lines[1]], BadLine, "a line behind the footer"),
        (lambda lines: [lines[0], "{not json", *lines[1:]], BadLine, r"run\.jsonl:2: not JSON"),
        (lambda lines: [lines[0], "[1]", *lines[1:]], BadLine, r":2: a list where an object"),
        (lambda lines: [lines[0], '{"kind": "poem"}', *lines[1:]], UnknownKind, r":2: kind 'poem'"),
        (lambda lines: [lines[0], "{}", *lines[1:]], UnknownKind, r":2: kind None"),
        (lambda lines: [lines[0], '{"kind": "result"}', *lines[1:]], BadLine, r":2: result\.case"),
        (
            lambda lines: [lines[0], lines[1].replace('"PASS"', '"GOOD"'), *lines[2:]],
            BadLine,
            r":2: result\.verdict",
        ),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, change, error, message) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run.jsonl"
    written(path, header(requirement("KVP-POOL-001")), result("KVP-POOL-001", "a", "PASS"))
    lines = change(path.read_text(encoding="utf-8").splitlines())
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(error, match=message):
        read(path)


def test_written_lines_fit_the_committed_schema(file: ResultFile) -> None:
    schema = json.loads((spec.find() / "schemas/result-line.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    lines = file.path.read_text(encoding="utf-8").splitlines()
    for line in lines:
        validator.validate(json.loads(line))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**json.loads(lines[1]), "verdict": "GOOD"})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"kind": "poem"})


# ---------------------------------------------------------------- summary


def test_the_worst_case_decides(file: ResultFile) -> None:
    assert summarize(file).verdicts == {
        "KVP-BATCH-001": "UNSUPPORTED",
        "KVP-DATA-001": "PRECONDITION",
        "KVP-KERN-001": "PLANNED",
        "KVP-POOL-001": "FAIL",
        "KVP-POOL-002": "PASS",
        "KVP-POOL-003": "FAIL",
        "KVP-SHARE-001": "XFAIL",
        "KVP-TABLE-001": "NOT_RUN",
    }


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("PASS FAIL TIMEOUT ERROR XPASS XFAIL", "FAIL"),
        ("PASS TIMEOUT ERROR", "TIMEOUT"),
        ("PASS ERROR XPASS", "ERROR"),
        ("PASS XPASS XFAIL", "XPASS"),
        ("UNSUPPORTED PASS PRECONDITION", "PASS"),
        ("PRECONDITION UNSUPPORTED", "UNSUPPORTED"),
        ("", "NOT_RUN"),
    ],
)
def test_order_of_verdicts(verdicts: str, expected: str) -> None:
    assert worst([Verdict(v) for v in verdicts.split()]) is Verdict(expected)


def test_failures_show_the_shortest_history_and_must_first(file: ResultFile) -> None:
    first, second = summarize(file).failures
    assert (first.requirement.id, first.result.case, first.others) == ("KVP-POOL-001", "short", ("long",))
    assert first.history() == ["  0  add(seq=0, tokens=[1, 2])", "  1  add(seq=1, tokens=[1, 2])  <- here"]
    assert (second.requirement.id, second.advisory) == ("KVP-POOL-003", True)


def test_an_unexpected_pass_of_a_should_fails_the_run(tmp_path: Path) -> None:
    file = written(
        tmp_path / "run.jsonl",
        header(requirement("KVP-POOL-001", level="SHOULD")),
        result("KVP-POOL-001", "a", "XPASS"),
    )
    assert [failure.advisory for failure in summarize(file).failures] == [False]
    assert "take it off the list of known failures" in markdown.render(file)


def test_a_finding_that_stands_alone_is_shown_before_one_that_follows(tmp_path: Path) -> None:
    file = written(
        tmp_path / "run.jsonl",
        header(requirement("KVP-POOL-001")),
        result("KVP-POOL-001", "follows", "FAIL", 1, after="KVP-FREE-001"),
        result("KVP-POOL-001", "alone", "FAIL", 9),
    )
    assert summarize(file).failures[0].result.case == "alone"


def test_what_did_not_run_says_why(file: ResultFile) -> None:
    why = {item.requirement.id: item.why for item in summarize(file).not_run}
    assert why == {
        "KVP-BATCH-001": "needs batch",
        "KVP-DATA-001": "needs torch",
        "KVP-TABLE-001": "no case of it was run",
    }


def test_table_sums_up(file: ResultFile) -> None:
    head, rows = summarize(file).table()
    assert head == ["area", "FAIL", "XFAIL", "PASS", "UNSUPPORTED", "PRECONDITION", "PLANNED", "NOT_RUN"]
    assert ["POOL", "2", "", "1", "", "", "", ""] in rows
    assert rows[-1] == ["all", "2", "1", "1", "1", "1", "1", "1"]


def test_results_without_a_requirement_in_the_header_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "run.jsonl", header(), result("KVP-POOL-001", "a", "PASS"))
    with pytest.raises(ResultsError, match="the header has no requirement KVP-POOL-001"):
        summarize(file)


def test_a_benchmark_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "run.jsonl", header(what="bench"))
    with pytest.raises(ResultsError, match="holds a bench run"):
        summarize(file)


# ---------------------------------------------------------------- reports


def test_markdown_says_everything(file: ResultFile) -> None:
    page = markdown.render(file)
    assert page.startswith("# subject 1.2: FAILED (1 FAIL, 1 XFAIL, 1 PASS,")
    assert "1 SHOULD not met)" in page.splitlines()[0]
    for line in (
        "| area | FAIL | XFAIL | PASS | UNSUPPORTED | PRECONDITION | PLANNED | NOT_RUN |",
        "### FAIL KVP-POOL-001: title of KVP-POOL-001",
        "KVP-POOL-001 MUST hold | always.",
        "Case `short`, 4 blocks of 2 tokens:",
        "  1  add(seq=1, tokens=[1, 2])  <- here",
        "expected: 4 [free]",
        "got:      3 [free]",
        "Replay: `kvproof replay x`",
        "Also in `long`.",
        "## Advice: a SHOULD that does not hold",
        "- KVP-SHARE-001 title of KVP-SHARE-001: no copy yet",
        "- not here: torch (kernel profile and rank processes)",
        "- KVP-BATCH-001 title of KVP-BATCH-001: UNSUPPORTED: needs batch",
        "- KVP-KERN-001 title of KVP-KERN-001",
        "Run again: `kvproof conformance --impl subject`",
    ):
        assert line in page.splitlines(), line


def test_markdown_fence_outlasts_backquotes_in_a_history(tmp_path: Path) -> None:
    file = written(
        tmp_path / "run.jsonl",
        header(requirement("KVP-POOL-001")),
        result("KVP-POOL-001", "a", "FAIL", got="```"),
    )
    assert "````text" in markdown.render(file).splitlines()


def test_a_passing_run_lists_no_failures(tmp_path: Path) -> None:
    footer = FOOTER.model_copy(update={"failed": 0, "exit_status": 0})
    file = written(
        tmp_path / "run.jsonl",
        header(requirement("KVP-POOL-001")),
        result("KVP-POOL-001", "a", "PASS"),
        footer=footer,
    )
    page = markdown.render(file)
    assert page.startswith("# subject 1.2: passed (1 PASS)")
    assert "## Failures" not in page


def test_an_interrupted_or_empty_run_is_never_called_passed(tmp_path: Path) -> None:
    for complete, status, word in ((False, 0, "INCOMPLETE"), (True, 3, "EMPTY")):
        footer = FOOTER.model_copy(update={"complete": complete, "exit_status": status})
        file = written(tmp_path / "run.jsonl", header(), footer=footer)
        assert word in summarize(file).headline
        assert "passed" not in markdown.render(file)


@pytest.mark.parametrize("colour", [False, True])
def test_terminal_shows_failures_and_ends_with_the_report(file: ResultFile, colour: bool) -> None:
    stream = io.StringIO()
    console = Console(
        file=stream, force_terminal=colour, width=100, color_system="standard" if colour else None
    )
    report = Path("results") / "runs" / ("x" * 120 + ".jsonl")
    terminal.show(file, report, console)
    text = stream.getvalue()
    assert ("\x1b[" in text) is colour
    assert text.rstrip("\n").splitlines()[-1] == f"report: {report}"
    for part in ("KVP-POOL-001", "add(seq=1, tokens=[1, 2])  <- here", "4 [free]", "kvproof replay x"):
        assert part in text
    assert "planned, not tested yet: KERN 1" in text
    assert "UNSUPPORTED: needs batch: BATCH-001" in text


def test_many_requirements_that_are_not_supported_are_counted(tmp_path: Path, file: ResultFile) -> None:
    asked = tuple(f"KVP-SWAP-00{n}" for n in range(1, 6))
    more = tuple(
        requirement(name, needs=("swap", "copies") if name.endswith("1") else ("swap",)) for name in asked
    )
    many = file.header.model_copy(update={"requirements": (*file.header.requirements, *more)})
    skipped = [
        Result(case=name, requirement=name, verdict=Verdict.UNSUPPORTED, reason="not here") for name in asked
    ]
    path = written(tmp_path / "run.jsonl", many, *file.results, *skipped).path
    stream = io.StringIO()
    terminal.show(read(path), path, Console(file=stream, width=200))
    counted = "UNSUPPORTED: 6 requirements (listed in summary.md), by what they need: "
    assert counted + "batch 1, swap, copies 1, swap 4" in stream.getvalue()


def test_a_text_without_utf8_is_escaped(tmp_path: Path, file: ResultFile) -> None:
    path = tmp_path / "odd.jsonl"
    with ResultWriter(path, file.header) as writer:
        writer.write(file.results[0].model_copy(update={"reason": "bad \ud800"}))
        writer.close(file.footer)
    assert read(path).results[0].reason == "bad \\ud800"

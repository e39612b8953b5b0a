"""Reports of several implementations, and what a report says of several failures."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from rich.console import Console

from kvproof import spec
from kvproof.cli import main
from kvproof.records import Footer, Judged, Level, Requirement, Result
from kvproof.report import matrix
from kvproof.report.markdown import render
from kvproof.report.results import ResultFile
from kvproof.report.summary import summarize
from kvproof.report.terminal import show_run
from kvproof.selftest.test_results import header

NAMES = ("KVP-KERN-001", "KVP-KERN-004", "KVP-KERN-016", "KVP-NUM-001")
DONE = Footer(complete=True, cases=3, must_run=2, failed=1, exit_status=1, seconds=1.5)


def file_of(
    name: str, verdicts: dict[str, str], aims: dict[str, tuple[str, ...]] | None = None, **fields: float
) -> ResultFile:
    """A file in which each requirement has one case of its own, named by it unless `aims` has others."""
    index = spec.load().requirements
    results = tuple(
        Result.model_validate({"case": f"case/{r}", "requirement": r, "verdict": v, **fields})
        for r, v in verdicts.items()
    )
    cases = tuple(
        Judged(
            id=f"case/{r}",
            aim=(aims or {}).get(r, (r,)),
            num_blocks=1,
            block_size=1,
            operations=1,
        )
        for r in verdicts
    )
    told = header(*(index[r] for r in verdicts)).model_copy(
        update={"implementation": name, "profile": "kernel"}
    )
    return ResultFile(Path(f"{name}.jsonl"), told, results, (), cases, DONE)


def shown(*files: ResultFile) -> str:
    stream = io.StringIO()
    show_run(files, Console(file=stream, width=120))
    return stream.getvalue()


# ------------------------------------------------------------ where to look first


@pytest.mark.parametrize(
    ("failing", "first"),
    [
        (("KERN-012", "NUM-001", "KERN-016", "KERN-001"), "KERN-016"),
        (("KERN-013", "KERN-004", "NUM-001", "KERN-010"), "KERN-004"),
        (("KERN-013", "KERN-010", "NUM-001"), "NUM-001"),
    ],
)
def test_a_cause_is_looked_at_before_what_follows_from_it(failing: tuple[str, ...], first: str) -> None:
    file = file_of("a", {f"KVP-{name}": "FAIL" for name in failing})
    said = summarize(file).first_look()
    assert said.startswith(f"{len(failing)} requirements failed: look at KVP-{first} first (")
    assert said in shown(file)
    assert f"{said}." in render(file)
    assert summarize(file_of("a", {"KVP-NUM-001": "FAIL"})).first_look() == ""


def test_whose_finding_it_is_comes_before_what_its_case_is_after() -> None:
    file = file_of("a", {"KVP-PREEMPT-001": "FAIL", "KVP-SCHED-005": "FAIL"})
    same = {"case": "case/KVP-PREEMPT-001", "expected": "every request ends", "got": "left: 1"}
    file = replace(file, results=tuple(r.model_copy(update=same) for r in file.results))
    assert "look at KVP-SCHED-005 first" in summarize(file).first_look()
    apart = (file.results[0], file.results[1].model_copy(update={"got": "left: 2"}))
    assert "look at KVP-PREEMPT-001 first" in summarize(replace(file, results=apart)).first_look()


def test_what_fails_where_the_first_holds_does_not_follow_from_it() -> None:
    """POOL-001 fails with TABLE-001 in one case; SHARE-001 in a case of its own."""
    file = file_of("a", {"KVP-POOL-001": "FAIL", "KVP-SHARE-001": "FAIL", "KVP-TABLE-001": "FAIL"})
    results = tuple(
        r if r.requirement == "KVP-SHARE-001" else r.model_copy(update={"case": "case/both"})
        for r in file.results
    )
    said = summarize(replace(file, results=results)).first_look()
    assert "look at KVP-POOL-001 first" in said
    assert "; may follow from it: TABLE-001; " in said
    assert said.endswith("seen where it holds, so look at them too: SHARE-001")


def test_a_broken_pool_is_looked_at_before_what_stands_for_it() -> None:
    file = file_of("a", {"KVP-ERR-001": "FAIL", "KVP-EVICT-001": "FAIL", "KVP-POOL-001": "FAIL"})
    assert [f.requirement.id[4:] for f in summarize(file).failures] == ["POOL-001", "ERR-001", "EVICT-001"]
    assert "run it again: kvproof conformance --impl a " in shown(file), "where nothing was saved"


def test_arithmetic_that_fails_in_cases_about_something_else_comes_last() -> None:
    verdicts = {"KVP-KERN-013": "FAIL", "KVP-NUM-001": "FAIL"}
    aside = file_of("a", verdicts, {"KVP-NUM-001": ("KVP-KERN-013",)})
    assert [f.requirement.id for f in summarize(aside).failures] == ["KVP-KERN-013", "KVP-NUM-001"]
    own = summarize(file_of("a", verdicts)).failures
    assert [f.requirement.id for f in own] == ["KVP-NUM-001", "KVP-KERN-013"]


def test_margins_count_the_cases_they_leave_out() -> None:
    file = file_of("a", {"KVP-NUM-001": "PASS", "KVP-KERN-001": "FAIL"}, margin=0.25)
    assert summarize(file).margins() == (
        "NUM-001 0.25 (case/KVP-NUM-001); 1 failing case, whose values may be wrong, left out"
    )
    beside = Result.model_validate(
        {"case": "case/KVP-NUM-001", "requirement": "KVP-KERN-001", "verdict": "FAIL", "margin": 3.0}
    )
    both = summarize(ResultFile(file.path, file.header, (*file.results, beside), (), file.cases, DONE))
    assert both.margins() == "2 failing cases, whose values may be wrong, left out"


def test_a_missing_package_is_no_missing_capability() -> None:
    file = file_of("a", {"KVP-KERN-010": "PRECONDITION"})
    told = file.results[0].model_copy(update={"reason": "torch is not here: pip install torch"})
    absent = ResultFile(file.path, file.header, (told,), (), (), DONE)
    assert [n.why for n in summarize(absent).not_run] == ["torch is not here: pip install torch"]


# ------------------------------------------------------------ several


def several() -> tuple[ResultFile, ...]:
    rows = {"one": "PASS PASS PASS FAIL", "two": "PASS UNSUPPORTED PASS PASS", "three": "PASS PASS PASS PASS"}
    return tuple(
        file_of(name, dict(zip(NAMES, verdicts.split(), strict=True))) for name, verdicts in rows.items()
    )


def test_what_fails_or_differs_is_a_row_and_the_rest_is_counted() -> None:
    text = shown(*several())
    lines = text[text.index("kernel side by side") :].splitlines()
    assert lines == [
        "kernel side by side: 1 one, 2 two, 3 three",
        "  1 2 3",
        f"  F P P  NUM-001 {spec.load().requirements['KVP-NUM-001'].title}",
        "  P - P  KERN-004",
        "  F FAIL, P PASS, - UNSUPPORTED; alike in all: 2 PASS",
    ]
    assert "side by side" not in shown(several()[0])


def test_the_page_and_the_record_have_every_row(tmp_path: Path) -> None:
    (found,) = matrix.matrices(several())
    rows = [line for line in matrix.markdown(found).splitlines() if "KVP-" in line]
    assert len(rows) == len(NAMES)
    assert rows[1].startswith("| **KVP-KERN-004** |")
    assert rows[1].endswith("| PASS | UNSUPPORTED | PASS |")
    data = json.loads(matrix.write(found, tmp_path).read_text())
    schema = json.loads((spec.find() / "schemas/matrix.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(data)
    assert data["verdicts"]["KVP-NUM-001"] == ["FAIL", "PASS", "PASS"]
    assert data["files"] == ["one.jsonl", "two.jsonl", "three.jsonl"]


def test_a_requirement_that_one_file_lacks_was_not_run_there() -> None:
    one, two = (
        file_of("one", {"KVP-NUM-001": "PASS", "KVP-NUM-002": "PASS"}),
        file_of("two", {"KVP-NUM-001": "PASS"}),
    )
    (found,) = matrix.matrices([one, two])
    assert found.verdicts["KVP-NUM-002"] == ("PASS", "NOT_RUN")


def test_a_run_of_several_writes_the_matrix(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main,
        ["conformance", "--impl", "reference", "--impl", "plain", "--impl", "faulty:late_at_the_edge",
         "--requirement", "TABLE-001", "--requirement", "BATCH-005", "--histories", "0",
         "--results", str(tmp_path)],
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    assert "manager side by side: 1 reference, 2 plain, 3 faulty:late_at_the_edge" in done.output
    assert "P P F  TABLE-001" in done.output
    assert "P - P  BATCH-005" in done.output
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "matrix-manager.json").read_text())["verdicts"]["KVP-TABLE-001"][2] == "FAIL"
    page = (folder / "summary.md").read_text()
    assert page.startswith("# manager: requirements by implementation")


def test_advice_is_told_from_a_must() -> None:
    advice = next(r for r in spec.load().requirements.values() if r.level is Level.SHOULD)
    assert isinstance(advice, Requirement)
    assert f"{advice.title} (SHOULD)" in shown(
        file_of("one", {advice.id: "FAIL"}), file_of("two", {advice.id: "PASS"})
    )

"""Exports load in the tools that they are for."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from click.testing import CliRunner
from junitparser import Failure, JUnitXml, Skipped

from kvproof import spec
from kvproof.cli import main
from kvproof.cli_results import COMMITTED
from kvproof.report import exports
from kvproof.report.results import read
from kvproof.selftest.result_files import BAD, WHERE, good_and_bad, judged, measured

NAME = {"type": "string", "minLength": 1, "maxLength": 1024}
BOUNDS = {key: {"type": "number"} for key in ("value", "lower_value", "upper_value")}
METRIC = {"type": "object", "properties": BOUNDS, "required": ["value"], "additionalProperties": False}
MEASURES = {
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 64},
    "additionalProperties": METRIC,
}
BENCHER = {"type": "object", "propertyNames": NAME, "additionalProperties": MEASURES}
"""Bencher Metric Format: benchmark -> measure -> metric. Its schema is bencher.dev/bmf.json; how long a name
and the slug of a measure may be stands in bencher.dev/docs/reference/bencher-metric-format."""
ENDPOINT = {
    "type": "object",
    "required": ["schemaVersion", "label", "message"],
    "properties": {
        "schemaVersion": {"const": 1},
        "label": {"type": "string"},
        "message": {"type": "string", "minLength": 1},
        "color": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
    },
    "additionalProperties": False,
}
"""shields.io/badges/endpoint-badge"""
TEXT, NUMBER = {"type": "string"}, {"type": "number"}
CUSTOM = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "properties": {"name": TEXT, "unit": TEXT, "value": NUMBER, "range": TEXT, "extra": TEXT},
        "additionalProperties": False,
    },
}
"""github-action-benchmark, tool "customSmallerIsBetter": its README, BenchmarkResult of src/extract.ts"""
FORMS = {"bencher.json": BENCHER, "badge.json": ENDPOINT, "github-action-benchmark.json": CUSTOM}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    written, left_out = exports.write([read(path) for path in good_and_bad(folder)], folder / "out")
    assert left_out == []
    assert {p.name for p in written} == {*exports.TEXTS, "results.csv", "results.parquet"}
    return folder / "out"


def _program(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program that is installed beside this Python, as its users run it."""
    place = Path(sys.executable).with_name(name)
    return subprocess.run([str(place), *arguments], capture_output=True, text=True, check=False)


def _json(path: Path) -> Any:
    """Strict JSON: Python's own reader takes NaN and Infinity, others do not."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{path.name}: {word} is no JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def test_junit_names_the_failure_and_its_history(exported: Path) -> None:
    suites = {suite.name: suite for suite in JUnitXml.fromfile(str(exported / "junit.xml"))}
    assert suites["good"].failures == 0
    assert suites["bad"].failures == 1
    cases = {case.name.split()[0]: case for case in suites["bad"]}
    (failure,) = cases[BAD].result
    assert isinstance(failure, Failure)
    assert failure.message == WHERE
    assert "kvproof replay x" in failure.text
    assert not any(isinstance(r, Failure | Skipped) for r in cases["KVP-POOL-001"].result)


def test_junit_is_read_by_the_program_of_junitparser(exported: Path, tmp_path: Path) -> None:
    judged(tmp_path / "other.jsonl", "other")
    exports.write([read(tmp_path / "other.jsonl")], tmp_path)
    for path, status in ((exported / "junit.xml", 1), (tmp_path / "junit.xml", 0)):
        assert _program("junitparser", "verify", str(path)).returncode == status, "1 if something failed"
    both = tmp_path / "both.xml"
    merged = _program(
        "junitparser", "merge", str(exported / "junit.xml"), str(tmp_path / "junit.xml"), str(both)
    )
    assert merged.returncode == 0, merged.stderr
    whole = JUnitXml.fromfile(str(both))
    assert (whole.tests, whole.failures, whole.errors) == (3 * 65, 1, 0)
    for suite in whole:
        assert (suite.tests, suite.skipped) == (65, sum(case.is_skipped for case in suite)), (
            "counts as it says"
        )


@pytest.mark.parametrize("name", FORMS)
def test_json_has_its_published_form(exported: Path, name: str) -> None:
    found = _json(exported / name)
    jsonschema.validate(found, FORMS[name])
    assert len(found) == {"bencher.json": 6, "badge.json": 4, "github-action-benchmark.json": 6}[name]


@pytest.mark.parametrize(
    ("unit", "slug"),
    [
        ("ns/sequence", "ns-sequence"),
        ("GB/s", "gb-s"),
        ("s, virtual", "s-virtual"),
        ("µs", "s"),
        ("%", "value"),
    ],
)
def test_a_unit_is_a_slug_of_small_letters(unit: str, slug: str, tmp_path: Path) -> None:
    measured(tmp_path / "bench.jsonl", ("one",), 1)
    text = (tmp_path / "bench.jsonl").read_text(encoding="utf-8").replace('"ns/sequence"', json.dumps(unit))
    (tmp_path / "bench.jsonl").write_text(text, encoding="utf-8")
    exports.write([read(tmp_path / "bench.jsonl")], tmp_path)
    found = _json(tmp_path / "bencher.json")
    jsonschema.validate(found, BENCHER)
    assert [list(measures) for measures in found.values()] == [[slug]]


def test_real_results_have_the_published_forms_too(tmp_path: Path) -> None:
    """All units and counters that are committed: every number is finite, every name its own."""
    results = spec.find().parent / "results"
    if not results.is_dir():
        pytest.skip("the results are committed beside the source: run this in a checkout")
    files = [read(path) for name in COMMITTED for path in sorted((results / name).rglob("*.jsonl"))]
    _, left_out = exports.write(files, tmp_path)
    assert left_out == []
    for name, schema in FORMS.items():
        jsonschema.validate(_json(tmp_path / name), schema)
    metrics = [m for measures in _json(tmp_path / "bencher.json").values() for m in measures.values()]
    assert all(m["lower_value"] <= m["value"] <= m["upper_value"] for m in metrics)
    names = [b["name"] for b in _json(tmp_path / "github-action-benchmark.json")]
    assert len(set(names)) == len(names) == len(metrics) > 100
    for suite in JUnitXml.fromfile(str(tmp_path / "junit.xml")):
        cases = list(suite)
        failed = sum(isinstance(r, Failure) for case in cases for r in case.result)
        assert (suite.tests, suite.failures) == (len(cases), failed)
    table = pd.read_parquet(tmp_path / "results.parquet")
    measured_ones = table[table["what"] == "sample"]
    assert measured_ones["median"].notna().all()
    assert {json.loads(p).__class__ for p in measured_ones["parameters"]} == {dict}


def test_badges_are_red_where_something_fails(exported: Path) -> None:
    assert exports.RED in (exported / "badge.svg").read_text(encoding="utf-8")
    assert ET.parse(exported / "badge.svg").getroot().tag.endswith("svg")
    assert json.loads((exported / "badge.json").read_text(encoding="utf-8"))["color"] == exports.RED


def test_pytest_benchmark_compares_two_files(exported: Path, tmp_path: Path) -> None:
    """Its program prints them beside each other, and its CSV has our numbers, in seconds."""
    before = tmp_path / "before.json"
    text = (exported / "pytest-benchmark.json").read_text(encoding="utf-8")
    before.write_text(text.replace('"median": 2e-09', '"median": 4e-09'), encoding="utf-8")
    table = tmp_path / "table.csv"
    files = str(before), str(exported / "pytest-benchmark.json")
    done = _program("py.test-benchmark", "compare", *files, "--group-by=fullname", f"--csv={table}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("good/decode_step[sequences=64, form=list 0]") == 3, (
        "in the head, and twice below"
    )
    rows = pd.read_csv(table)
    assert len(rows) == 2 * 6
    name = "good/decode_step[sequences=64, form=list 0] ns/sequence"
    mine = rows[rows["name"].str.contains(name, regex=False)]
    assert sorted(mine["median"]) == pytest.approx([2e-9, 4e-9])
    assert mine["min"].tolist() == pytest.approx([1.9e-9] * 2)
    assert mine["rounds"].tolist() == [5, 5]


def test_tables_hold_every_verdict_and_sample(exported: Path) -> None:
    csv = pd.read_csv(exported / "results.csv", dtype=exports.COLUMNS)
    parquet = pd.read_parquet(exported / "results.parquet")
    assert len(csv) == len(parquet) == 2 * 65 + 6
    assert list(csv.columns) == list(parquet.columns)
    assert parquet[parquet["what"] == "sample"]["median"].tolist() == [2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    assert (parquet["verdict"] == "FAIL").sum() == 1
    assert parquet.dtypes["gpu"] == parquet.dtypes["name"] == "string", "also where a column is empty"
    empty = {name: "" for name, kind in exports.COLUMNS.items() if kind == "string"}
    pd.testing.assert_frame_equal(csv.fillna(empty), parquet.fillna(empty))
    numbers = csv.groupby(["implementation", "name"])["median"].median()
    assert numbers["bad", "decode_step"] == 3.0


def test_forms_without_matter_are_named_as_left_out(tmp_path: Path) -> None:
    measured(tmp_path / "bench.jsonl", ("one",))
    written, left_out = exports.write([read(tmp_path / "bench.jsonl")], tmp_path / "out")
    assert "junit.xml: no conformance file" in left_out
    assert not (tmp_path / "out" / "junit.xml").exists()
    assert tmp_path / "out" / "bencher.json" in written
    assert (tmp_path / "out" / exports.LEFT_OUT).read_text(encoding="utf-8").splitlines() == left_out
    given = [str(tmp_path / "bench.jsonl"), "--to", str(tmp_path / "out")]
    said = [
        line for line in CliRunner().invoke(main, ["export", *given]).output.splitlines() if "left" in line
    ]
    assert said == [f"left out: {len(left_out)} forms; why: {tmp_path / 'out' / exports.LEFT_OUT}"]


@pytest.mark.parametrize("command", ["export", "report", "history"])
def test_a_killed_run_is_named_and_harms_no_other(tmp_path: Path, command: str) -> None:
    judged(tmp_path / "runs" / "good.jsonl", "good")
    text = (tmp_path / "runs" / "good.jsonl").read_text(encoding="utf-8")
    (tmp_path / "runs" / "killed.jsonl").write_text(text[: len(text) // 2], encoding="utf-8")
    where = {"export": "--to", "report": "--site", "history": "--file"}[command]
    done = CliRunner().invoke(main, [command, str(tmp_path / "runs"), where, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "runs/killed.jsonl" in done.output
    assert "did not end" in done.output
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "where"), [("export", "--to"), ("report", "--site"), ("history", "--file")]
)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, command: str, where: str) -> None:
    judged(tmp_path / "good.jsonl", "good")
    done = CliRunner().invoke(main, [command, str(tmp_path / "good.jsonl"), where, "/dev/null/x"])
    assert done.exit_code == 2, done.output
    assert "name a place that can be written" in done.output


def test_what_is_no_result_file_is_named_in_full(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text("not JSON\n")
    done = CliRunner().invoke(main, ["export", str(tmp_path), "--to", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert str(tmp_path / "other.jsonl") in done.output.replace("\n", "")

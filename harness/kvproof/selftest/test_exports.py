"""Exports load in the tools that they are for."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
from click.testing import CliRunner
from junitparser import Failure, JUnitXml, Skipped

from kvproof.cli import main
from kvproof.report import exports
from kvproof.report.results import read
from kvproof.selftest.result_files import WHERE, judged, measured

BENCHER = {
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number"},
                        "lower_value": {"type": "number"},
                        "upper_value": {"type": "number"},
                    },
                    "required": ["value"],
                }
            },
        }
    },
}
"""bencher.dev/bmf.json"""
ENDPOINT = {
    "type": "object",
    "required": ["schemaVersion", "label", "message"],
    "properties": {
        "schemaVersion": {"const": 1},
        "label": {"type": "string"},
        "message": {"type": "string", "minLength": 1},
        "color": {"type": "string"},
    },
}
"""shields.io/badges/endpoint-badge"""
CUSTOM = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "unit", "value"],
        "properties": {
            "name": {"type": "string"},
            "unit": {"type": "string"},
            "value": {"type": "number"},
            "range": {"type": "string"},
            "extra": {"type": "string"},
        },
    },
}
"""README of benchmark-action/github-action-benchmark, "customSmallerIsBetter"."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    judged(folder / "good.jsonl", "good")
    judged(folder / "bad.jsonl", "bad", "KVP-PREFIX-002")
    measured(folder / "bench.jsonl", ("good", "bad"))
    files = [read(path) for path in sorted(folder.glob("*.jsonl"))]
    written, left_out = exports.write(files, folder / "out")
    assert left_out == []
    assert {p.name for p in written} == {*exports.TEXTS, "results.csv", "results.parquet"}
    return folder / "out"


def test_junit_names_the_failure_and_its_history(exported: Path) -> None:
    suites = {suite.name: suite for suite in JUnitXml.fromfile(str(exported / "junit.xml"))}
    assert suites["good"].failures == 0
    assert suites["bad"].failures == 1
    cases = {case.name.split()[0]: case for case in suites["bad"]}
    (failure,) = cases["KVP-PREFIX-002"].result
    assert isinstance(failure, Failure)
    assert failure.message == WHERE
    assert "kvproof replay x" in failure.text
    assert not any(isinstance(r, Failure | Skipped) for r in cases["KVP-POOL-001"].result)


@pytest.mark.parametrize(
    ("name", "schema"),
    [("bencher.json", BENCHER), ("badge.json", ENDPOINT), ("github-action-benchmark.json", CUSTOM)],
)
def test_json_has_its_published_form(exported: Path, name: str, schema: dict[str, object]) -> None:
    found = json.loads((exported / name).read_text(encoding="utf-8"))
    jsonschema.validate(found, schema)
    assert len(found) == {"bencher.json": 6, "badge.json": 4, "github-action-benchmark.json": 6}[name]


def test_badges_are_red_where_something_fails(exported: Path) -> None:
    assert exports.RED in (exported / "badge.svg").read_text(encoding="utf-8")
    assert ET.parse(exported / "badge.svg").getroot().tag.endswith("svg")
    assert json.loads((exported / "badge.json").read_text(encoding="utf-8"))["color"] == exports.RED


def test_pytest_benchmark_compares_the_file(exported: Path) -> None:
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(exported / "pytest-benchmark.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "good/decode_step" in done.stdout
    assert "bad/decode_step" in done.stdout


def test_tables_hold_every_verdict_and_sample(exported: Path) -> None:
    csv, parquet = pd.read_csv(exported / "results.csv"), pd.read_parquet(exported / "results.parquet")
    assert len(csv) == len(parquet) == 2 * 65 + 6
    assert list(csv.columns) == list(parquet.columns)
    assert parquet[parquet["what"] == "sample"]["median"].tolist() == [2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    assert (parquet["verdict"] == "FAIL").sum() == 1


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

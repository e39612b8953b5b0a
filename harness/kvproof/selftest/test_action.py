"""The GitHub Action's steps, run in bash as the runner does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

TOP = Path(__file__).parents[3]
ACTION = TOP / "action.yml"
pytestmark = pytest.mark.skipif(not ACTION.is_file(), reason="no checkout: action.yml is not here")


def step(name: str, folder: Path, **inputs: str) -> tuple[int, str, dict[str, str], str]:
    """Exit status, output, step outputs and summary of one step."""
    script = re.search(rf"- name: {name}\n(?:.*\n)*?      run: (.+)\n", ACTION.read_text())
    assert script
    files = {f"GITHUB_{n}": str(folder / n) for n in ("OUTPUT", "STEP_SUMMARY")}
    environment = {
        **os.environ,
        **files,
        "GITHUB_ACTION_PATH": str(TOP),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **inputs,
    }
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script[1]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = {n: Path(path).read_text() if Path(path).is_file() else "" for n, path in files.items()}
    outputs = dict(line.split("=", 1) for line in said["GITHUB_OUTPUT"].splitlines())
    return done.returncode, done.stdout + done.stderr, outputs, said["GITHUB_STEP_SUMMARY"]


def test_judge_writes_summary_junit_and_badge(tmp_path: Path) -> None:
    arguments = "--requirement TABLE-001 --histories 0"
    status, output, said, summary = step(
        "Judge",
        tmp_path,
        KVPROOF_IMPL="plain\n\nfaulty:late_at_the_edge\n",
        KVPROOF_PROFILE="manager",
        KVPROOF_ARGUMENTS=arguments,
        KVPROOF_RESULTS="out",
    )
    assert status == 1, output
    assert said == {"status": "1", "junit": "out/export/junit.xml", "badge": "out/export/badge.json"}
    assert "FAIL KVP-TABLE-001" in summary
    assert summary.count("# ") >= 2
    suites = {s.get("name"): s.get("failures") for s in ET.parse(tmp_path / said["junit"]).getroot()}
    assert suites == {"plain": "0", "faulty:late_at_the_edge": "1"}
    assert json.loads((tmp_path / said["badge"]).read_text())["schemaVersion"] == 1
    assert "::error title=kvproof::exit status 1" in output


def test_what_judges_nothing_says_so(tmp_path: Path) -> None:
    status, output, said, _ = step("Judge", tmp_path, KVPROOF_IMPL=" \n", KVPROOF_RESULTS="out")
    assert (status, said) == (2, {})
    assert "the input impl is empty" in output
    status, output, said, summary = step("Judge", tmp_path, KVPROOF_IMPL="no_such", KVPROOF_RESULTS="out")
    assert (status, said) == (2, {"status": "2"})
    assert "judged nothing (exit status 2)" in summary


def test_install_asks_pip_for_kvproof_and_the_callers_package(tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    status, output, *_ = step(
        "Install", tmp_path, PATH=f"{fake.parent}:{os.environ['PATH']}", KVPROOF_INSTALL="-e ."
    )
    assert status == 0, output
    assert output.split()[:3] == ["-m", "pip", "install"]
    assert output.split()[-3:] == [str(TOP), "-e", "."]


def test_every_input_reaches_a_step() -> None:
    text = ACTION.read_text()
    declared = set(
        re.findall(r"^  (\w+):$", text.partition("inputs:")[2].partition("outputs:")[0], re.MULTILINE)
    )
    assert declared == set(re.findall(r"inputs\.(\w+)", text))
    handed = set(re.findall(r"^        (KVPROOF_\w+):", text, re.MULTILINE))
    assert handed == set(re.findall(r"\$\{(KVPROOF_\w+)", (TOP / ".ci" / "action").read_text()))

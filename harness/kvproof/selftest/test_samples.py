"""The sample servers in other languages: built as their first lines say, judged, and killed in the middle."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof.cli import main
from kvproof.records import Verdict
from kvproof.report.results import ResultFile, read

SAMPLES = Path(__file__).parents[3] / "impls" / "samples"
BUILD = {
    "rust": ("rustc", "--edition", "2021", "-O", "-o", "{out}", "server.rs"),
    "cpp": ("g++", "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-o", "{out}", "server.cpp"),
    "node": ("node",),
}


@pytest.fixture(scope="module", params=sorted(BUILD))
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command that starts one."""
    name = str(request.param)
    program, *arguments = BUILD[name]
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here: the sample in {name} was not built")
    if not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} is not here: no checkout")
    if not arguments:
        return f"node {SAMPLES / name / 'server.js'}"
    out = tmp_path_factory.mktemp(name) / "server"
    subprocess.run([program, *(a.format(out=out) for a in arguments)], cwd=SAMPLES / name, check=True)
    return str(out)


def conformance(command: str, folder: Path, *more: str) -> tuple[int, ResultFile, str]:
    arguments = ["conformance", "--impl", f"process:{command}", "--results", str(folder), *more]
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    (path,) = folder.rglob("*.jsonl")
    return done.exit_code, read(path), done.output


def test_it_passes(sample: str, tmp_path: Path) -> None:
    status, file, output = conformance(sample, tmp_path, "--histories", "0")
    assert status == 0, output
    passed = {r.requirement for r in file.results if r.verdict is Verdict.PASS}
    assert len(passed) >= 40
    assert {"KVP-PREFIX-001", "KVP-EVICT-003", "KVP-SHARE-002", "KVP-POOL-007", "KVP-ERR-001"} <= passed


KILLS_ONCE = """
import contextlib, os, signal, subprocess, sys
mark, *command = sys.argv[1:]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for count, line in enumerate(sys.stdin.buffer):
    server.stdin.write(line)
    server.stdin.flush()
    if count == 9:
        with contextlib.suppress(FileExistsError):
            open(mark, "x").close()
            server.kill()
            os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.buffer.write(server.stdout.readline())
    sys.stdout.flush()
server.stdin.close()
server.wait()
"""
"""Stands before a server, and kills it and itself at the tenth request; after that a new one lives."""


@pytest.mark.parametrize("sample", ["node"], indirect=True)
def test_killed_in_the_middle_it_gives_a_report(sample: str, tmp_path: Path) -> None:
    (tmp_path / "kills.py").write_text(KILLS_ONCE, encoding="utf-8")
    command = f"{sys.executable} {tmp_path / 'kills.py'} {tmp_path / 'killed'} {sample}"
    status, file, output = conformance(command, tmp_path, "--histories", "100", "--requirement", "TABLE")
    assert status == 1, output
    assert file.footer.complete
    lost = [r for r in file.results if r.verdict is Verdict.ERROR]  # all that this case judges
    assert lost
    assert all("the program ended with signal 9; asked was" in r.reason for r in lost), lost
    assert [r for r in file.results[file.results.index(lost[0]) :] if r.verdict is Verdict.PASS], "it goes on"


def test_it_answers_the_example_as_the_plain_implementation_does(sample: str) -> None:
    """But for names of blocks and what it can do."""
    requests = CliRunner().invoke(main, ["protocol", "--send"]).output
    said = subprocess.run(sample.split(), input=requests, capture_output=True, text=True, check=True).stdout
    theirs = [json.loads(line) for line in said.splitlines()]
    plain = [
        json.loads(line) for line in CliRunner().invoke(main, ["protocol", "--answers"]).output.splitlines()
    ]
    assert [a.get("err") for a in theirs] == [a.get("err") for a in plain]
    adds = [n for n, line in enumerate(requests.splitlines()) if json.loads(line)["op"] == "add"]
    assert [theirs[n].get("ok") for n in adds] == [plain[n].get("ok") for n in adds] == [0, 4, None, None]
    assert theirs[15]["ok"]["ns"] > 0

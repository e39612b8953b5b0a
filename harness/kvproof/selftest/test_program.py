"""Programs in other processes: what they answer, how they fail, and that nothing of them is left."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from kvproof import protocol
from kvproof.cli import main
from kvproof.conformance.session import FACTORIES
from kvproof.histories import directed
from kvproof.records import Observation, Verdict
from kvproof.report.results import ResultFile, read
from kvproof.subjects import SubjectError, channel, find
from kvproof.subjects.calls import no_clock
from kvproof.subjects.channel import Channel, ProgramFault
from kvproof.subjects.drive import Nonsense
from kvproof.subjects.remote import NOT_SERVED, RemoteFactory, Unserved
from kvproof.subjects.serve import server
from kvproof.subjects.worker import run_case

PROGRAM = f"{sys.executable} {Path(__file__).with_name('rogue_program.py')}"


def conformance(mode: str, folder: Path, *more: str) -> tuple[int, ResultFile, str]:
    done = CliRunner().invoke(
        main,
        [
            "conformance",
            "--impl",
            f"process:{PROGRAM} {mode}",
            "--results",
            str(folder),
            "--histories",
            "3",
            *more,
        ],
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    (path,) = folder.rglob("*.jsonl")
    return done.exit_code, read(path), done.output


# ---------------------------------------------------------------- the same as in process


def told(seen: Observation) -> Observation:
    """All but the words of an error."""
    return seen.model_copy(update={"detail": ""})


class Loop:
    """A channel to a server in this process."""

    alive = True

    def __init__(self, name: str) -> None:
        self.server = server(name)

    def ask(self, request: bytes) -> bytes:
        return self.server.answer(request.decode()).encode()

    def refuse(self, why: str, answer: bytes) -> ProgramFault:
        return ProgramFault(f"{why}: {answer!r}")


def looped(name: str, monkeypatch: pytest.MonkeyPatch) -> RemoteFactory:
    factory = RemoteFactory("none")
    monkeypatch.setattr(factory, "_channel", lambda: Loop(name))
    return factory


@pytest.mark.parametrize("name", ["plain", "reference"])
@pytest.mark.parametrize("profile", ["manager", "scheduler"])
def test_a_history_shows_the_same_out_of_process(
    name: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent is valid by the schema as well: the server refuses what is not."""
    here, there = find(name, FACTORIES[profile]).factory(), looped(name, monkeypatch)
    seen = 0
    for case in directed.cases():
        if case.profile != profile or NOT_SERVED & set(case.needs):
            continue
        mine, theirs = run_case(here, case, no_clock), run_case(there, case, no_clock)
        for one, other in zip(mine, theirs, strict=True):
            assert told(one) == told(other), case.id
        seen += len(mine)
    assert seen > 100


# ---------------------------------------------------------------- what goes wrong is a verdict


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("exits", 'the program ended with exit status 7; asked was {"op": "append", "seq": 0'),
        ("exits", "its last words: 'out of luck'"),
        ("garbage", "Invalid JSON: expected value at line 1 column 1; asked was"),
        ("garbage", "read was 'warning: \\\\u00fc no JSON'"),
        ("twice", "wrote"),
        ("wrong_type", "ok: Input should be a valid tuple; asked was"),
        ("wrong_error", "gave an answer that is none"),
        ("internal", "the program answered Internal: a fault of its own"),
        ("empty", "gave an answer that is none"),
        ("closes", "closed its standard output"),
    ],
)
def test_a_fault_of_the_program_is_a_verdict(mode: str, words: str, tmp_path: Path) -> None:
    status, file, output = conformance(mode, tmp_path, "--requirement", "TABLE-003")
    assert status == 1, output
    assert file.footer.complete
    reasons = {r.reason for r in file.results if r.verdict is Verdict.ERROR}
    assert any(words in reason for reason in reasons), reasons

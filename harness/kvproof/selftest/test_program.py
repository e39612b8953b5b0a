"""Programs in other processes: what they answer, how they fail, and that nothing of them is left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from kvproof.cli import main
from kvproof.conformance.look import FACTORIES
from kvproof.contract import BadInput
from kvproof.histories import directed
from kvproof.records import Observation, Verdict
from kvproof.report.results import ResultFile, read
from kvproof.subjects import SubjectError, channel, find, remote
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
    for case in directed.cases()[:: 3 if name == "reference" else 1]:
        if case.profile != profile or case.num_blocks > 64 or NOT_SERVED & set(case.needs):
            continue
        mine, theirs = run_case(here, case, no_clock), run_case(there, case, no_clock)
        for one, other in zip(mine, theirs, strict=True):
            assert told(one) == told(other), case.id
        seen += len(mine)
    assert seen > 50


# ---------------------------------------------------------------- what goes wrong is a verdict


def appended_twice(mode: str, *more: str) -> None:
    manager: Any = RemoteFactory(" ".join([PROGRAM, mode, *more]))(8, 4)
    manager.add(0, [1, 2])
    manager.append(0, [3])
    manager.append(0, [4])


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("twice", "wrote more than the one line that answers; asked was {"),
        ("wrong_type", "ok: Input should be a valid array; asked was"),
        ("wrong_error", "gave an answer that is none"),
        ("internal", "the program answered Internal: a fault of its own"),
        ("empty", "gave an answer that is none: the line: Invalid JSON: EOF"),
        ("closes", "closed its standard output; asked was"),
        ("floods", "bytes without an end of line; asked was"),
        ("floods_stderr", "bytes to standard error and no answer; asked was"),
        ("hangs", "gave no answer within 2 s; asked was"),
    ],
)
def test_what_is_no_answer_is_named_and_shown_cut(
    mode: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(channel, "MOST_ANSWER", 1 << 20)
    monkeypatch.setattr(channel, "MOST_WORDS", 1 << 20)
    if mode == "hangs":
        monkeypatch.setattr(Channel.__init__, "__defaults__", (2.0,))
    with pytest.raises(ProgramFault) as caught:
        appended_twice(mode, str(tmp_path / "pids"))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 700
    if mode == "hangs":
        gone(tmp_path / "pids")


def gone(file: Path) -> None:
    """The program and its child, whose ids are in the file, end soon."""
    pids = [int(pid) for pid in file.read_text().split()]
    until = time.monotonic() + 20
    while any(psutil.pid_exists(p) and psutil.Process(p).status() != "zombie" for p in pids):
        assert time.monotonic() < until, f"still running: {pids}"
        time.sleep(0.05)
    assert len(pids) >= 2


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("exits", ("the program ended with exit status 7; asked was {", "its last words: 'out of luck'")),
        (
            "garbage",
            ("Invalid JSON: expected value at line 1 column 1", "read was 'warning: \u00fc no JSON'"),
        ),
    ],
)
def test_a_fault_of_the_program_is_a_verdict(mode: str, words: tuple[str, ...], tmp_path: Path) -> None:
    status, file, output = conformance(mode, tmp_path, "--requirement", "TABLE-003")
    assert status == 1, output
    assert file.footer.complete
    (reason, *_) = {r.reason for r in file.results if r.verdict is Verdict.ERROR}
    assert [w for w in words if w not in reason] == [], reason


def test_a_hang_is_a_timeout_and_its_process_group_ends(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    status, file, output = conformance(
        f"hangs {pids}", tmp_path, "--requirement", "TABLE-003", "--call-limit", "1.5"
    )
    assert status == 1, output
    hung = [r for r in file.results if r.verdict is Verdict.TIMEOUT]
    assert len(hung) > 1, "the cases behind the first hang must still run"
    assert all(r.reason == "no answer within 1.5 s" for r in hung)
    assert file.footer.complete
    gone(pids)


def test_a_line_that_nothing_asked_for(tmp_path: Path) -> None:
    early = Channel(f"sh -c 'echo early; touch {tmp_path}/said; exec sleep 60'", own_group=True)
    while not (tmp_path / "said").exists():
        time.sleep(0.01)
    with pytest.raises(ProgramFault, match=r"wrote a line that nothing had asked for.*read was 'early\\n'"):
        early.ask(b"{}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "a command is needed"),
        ("no_such_program --x", "there is no program no_such_program"),
        ("sh -c 'open", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_be_run_is_wrong_input(command: str, words: str) -> None:
    with pytest.raises(SubjectError, match=words):
        find(f"process:{command}")


def test_what_a_program_may_not_name_and_which_profiles_there_are() -> None:
    with pytest.raises(Nonsense, match="'codec' is judged in process only"):
        RemoteFactory(f"{PROGRAM} names_codec")(8, 4)
    with pytest.raises(TypeError, match="ranks and kernels"):
        RemoteFactory(f"{PROGRAM} bare")((8, 8), 4, object())  # type: ignore[arg-type]
    status = CliRunner().invoke(main, ["smoke", f"process:{PROGRAM} bare", "--profile", "kernel"])
    assert status.exit_code == 2
    assert "called with ()" in status.output


# ---------------------------------------------------------------- time inside


def test_time_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = RemoteFactory(f"{PROGRAM} clock")
    manager: Any = factory(8, 4)

    def call() -> tuple[int, list[int]]:
        first = manager.add(0, [1, 2])
        manager.commit(0, 2)
        return first, [manager.add(1, [5]), manager.free_blocks()]

    result, seconds = factory.timed(call)
    assert (result, seconds) == ((0, [0, 6]), 2.0)
    manager.free(0)
    manager.free(1)
    monkeypatch.setattr(remote, "MOST_RUN", 2)
    assert factory.timed(call) == ((0, [0, 6]), 4.0), "in pieces"
    with pytest.raises(BadInput):
        factory.timed(lambda: manager.add(0, [7]))
    assert manager.free_blocks() == 6
    without: Any = RemoteFactory(f"{PROGRAM} bare")
    with pytest.raises(Unserved):
        without.timed(without(8, 4).free_blocks)


def test_the_benchmark_takes_the_time_of_the_program(tmp_path: Path) -> None:
    where = f"process:{PROGRAM} clock"
    arguments = ["bench", "--impl", where, "--cell", "free", "--rounds", "1", "--results", str(tmp_path)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.rglob("*.jsonl")
    timed = [s for s in read(path).samples if s.rounds]
    assert [(s.parameters["tokens"], s.median) for s in timed] == [(8192, 2e9 / 2048)]
    bare = CliRunner().invoke(main, [*arguments[:2], f"process:{PROGRAM} bare", *arguments[3:]])
    assert bare.exit_code == 2
    assert "no time is taken outside a program" in " ".join(bare.output.split())


def test_a_failure_of_a_program_is_saved_and_replays(tmp_path: Path) -> None:
    where = f"process:{sys.executable} -m kvproof.subjects.serve faulty:late_at_the_edge"
    arguments = ["--requirement", "TABLE-001", "--histories", "0", "--results", str(tmp_path)]
    judged = CliRunner().invoke(main, ["conformance", "--impl", where, *arguments])
    assert judged.exit_code == 1, judged.output
    (vector,) = tmp_path.rglob("failures/*.json")
    again = CliRunner().invoke(main, ["replay", str(vector)])
    assert again.exit_code == 1, again.output
    assert "KVP-TABLE-001: expected" in again.output

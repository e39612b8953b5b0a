"""An adapter that raises, hangs, talks nonsense or exits gives a report with verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof.cli import main
from kvproof.records import Verdict
from kvproof.report.results import ResultFile, read
from kvproof.report.summary import summarize

ROGUES = Path(__file__).with_name("rogues.py")


def conformance(factory: str, folder: Path, *more: str) -> tuple[int, ResultFile | None, str]:
    """Exit status, result file and output of a short run."""
    done = CliRunner().invoke(
        main,
        ["conformance", "--impl", f"{ROGUES}:{factory}", "--results", str(folder), "--histories", "5", *more],
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output, done.output
    files = list(folder.rglob("*.jsonl"))
    return done.exit_code, read(files[0]) if files else None, done.output


def test_bare_minimum_passes_and_shows_the_rest_as_unsupported(tmp_path: Path) -> None:
    status, file, output = conformance("bare", tmp_path)
    assert status == 0, output
    assert file is not None
    verdicts = summarize(file).verdicts
    assert verdicts["KVP-POOL-001"] is Verdict.PASS
    assert verdicts["KVP-TABLE-001"] is Verdict.PASS
    assert verdicts["KVP-PREFIX-001"] is Verdict.UNSUPPORTED
    assert verdicts["KVP-SHARE-001"] is Verdict.UNSUPPORTED
    assert "KVP-METRIC-001" not in verdicts, "it binds reports, not implementations"
    assert not [v for v in verdicts.values() if v in (Verdict.FAIL, Verdict.ERROR, Verdict.TIMEOUT)]


@pytest.mark.parametrize(
    ("factory", "verdict", "words"),
    [
        ("raises", Verdict.ERROR, "ZeroDivisionError: a fault of its own"),
        ("exits", Verdict.ERROR, "exit status 7"),
        ("sys_exits", Verdict.ERROR, "SystemExit: enough"),
        ("nonsense", Verdict.ERROR, "a sequence of ints is needed"),
        ("nonsense_count", Verdict.ERROR, "an int is needed"),
    ],
)
def test_fault_of_the_adapter_is_a_verdict(
    factory: str, verdict: Verdict, words: str, tmp_path: Path
) -> None:
    status, file, output = conformance(factory, tmp_path, "--requirement", "TABLE-001")
    assert status == 1, output
    assert file is not None
    assert file.footer.complete
    bad = [r for r in file.results if r.verdict is verdict]
    assert bad
    assert any(words in r.reason for r in bad), {r.reason for r in bad}


def test_hang_is_killed_at_the_limit_and_the_run_goes_on(tmp_path: Path) -> None:
    status, file, output = conformance("hangs", tmp_path, "--call-limit", "0.2", "--requirement", "TABLE-001")
    assert status == 1, output
    assert file is not None
    hung = [r for r in file.results if r.verdict is Verdict.TIMEOUT]
    assert len(hung) > 1, "the cases behind the first hang must still run"
    assert all(r.reason == "no answer within 0.2 s" for r in hung)
    assert all(r.step is not None and r.history[r.step].op == "append" for r in hung)


def test_output_of_the_subject_does_not_disturb(tmp_path: Path) -> None:
    status, file, output = conformance("prints", tmp_path, "--requirement", "POOL")
    assert status == 0, output
    assert file is not None


def test_a_factory_that_fails_is_wrong_input(tmp_path: Path) -> None:
    status, file, output = conformance("cannot_be_made", tmp_path)
    assert status == 2
    assert file is None
    assert "no GPU here" in output
    assert len(output.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "no run, no folder"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("no_such_thing", "installed are"),
        ("no/such/file.py", "there is no file"),
        (f"{ROGUES}:no_factory", "has no factory 'no_factory'"),
    ],
)
def test_wrong_names_say_what_is_allowed(where: str, words: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["conformance", "--impl", where, "--results", str(tmp_path)])
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 1
    assert not list(tmp_path.iterdir())
    assert words in done.output.replace("\n", " ")


def test_smoke_names_what_an_adapter_lacks() -> None:
    done = CliRunner().invoke(main, ["smoke", f"{ROGUES}:names_what_it_lacks"])
    assert done.exit_code == 1
    assert "'fork' is named but fork is missing" in done.output
    assert "'no-such-capability' is not known" in done.output
    assert CliRunner().invoke(main, ["smoke", f"{ROGUES}:bare"]).exit_code == 0

"""The authoring kit: skeletons that are sane once filled in, adapters of packages, example messages."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvproof import authoring
from kvproof.cli import main
from kvproof.conformance.look import FACTORIES
from kvproof.histories.directed import cases
from kvproof.histories.rank_faults import rank_faults
from kvproof.records import Verdict
from kvproof.report.results import read
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import session_of
from kvproof.spec import find as find_specs

BLANK = re.compile(r"\bblank\((?:\"[^\"]*\")\)")
FILLED = {
    "manager": (
        "from kvproof_impls.plain.manager import PlainManager",
        "PlainManager(num_blocks + 1, block_size, frozenset())",  # it keeps block 0 to itself
        "self.manager.add(seq, tokens)",
        "self.manager.append(seq, tokens)",
        "self.manager.free(seq)",
        "self.manager.table(seq)",
        "self.manager.free_blocks()",
    ),
    "scheduler": (
        "from kvproof_impls.plain.adapter import make_scheduler as plain",
        "plain(num_blocks + 1, block_size, max_seqs, max_tokens)",
        "self.scheduler.submit(rid, tokens, max_new) or tokens",
        "self.scheduler.plan()",
        "self.scheduler.feed(tokens)",
        "self.scheduler.abort(rid)",
        "self.scheduler.preempted()",
        "self.scheduler.free_blocks()",
    ),
    "kernel": (
        "from kvproof_impls.torch_gather.adapter import make as gather",
        "gather().decode(q, k_cache, v_cache, block_table, seq_lens, scale)",
    ),
    "ranks": (
        "from kvproof_impls.reference.adapter import make_uncached as uncached",
        "uncached(capacity, self.block_size)",
        "self.manager.free(seq)",
        "self.manager.append(seq, given[0])",
        "self.manager.add(seq, self.tokens[seq])",
        "self.manager.table(seq)",
        "self.manager.free_blocks()",
    ),
}


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.mark.parametrize("kind", authoring.KINDS)
def test_a_skeleton_is_sane_once_its_blanks_are_filled(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "kernel":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert run("new-adapter", "mine", "--kind", kind).exit_code == 0
    path = tmp_path / "mine" / "adapter.py"
    where = f"mine/adapter.py:{FACTORIES[kind]}"
    if kind != "kernel":  # for another import of torch
        empty = run("smoke", where)
        assert empty.exit_code == 2
        assert "blank: your" in empty.output, "it names what is to be filled in"
    above, *fillings = FILLED[kind]
    text = path.read_text()
    assert len(BLANK.findall(text)) == len(fillings)
    numbers = itertools.count()
    filled = BLANK.sub(lambda _: fillings[next(numbers)], text)
    path.write_text(filled.replace("\n\n\ndef blank", f"\n{above}\n\n\ndef blank", 1))
    said = run("smoke", where)
    assert (said.exit_code, said.output.splitlines()[-1]) == (0, f"{where}: the adapter is sane")


def test_a_filled_skeleton_passes_and_its_toml_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_a_skeleton_is_sane_once_its_blanks_are_filled("manager", tmp_path, monkeypatch)
    toml = tmp_path / "mine" / "impl.toml"
    toml.write_text(toml.read_text().replace('version = "0"', 'version = "1.2.3"'))
    judged = run("conformance", "--impl", "mine/adapter.py", "--histories", "5", "--requirement", "TABLE")
    assert judged.exit_code == 0, judged.output
    assert "mine/adapter.py:make 1.2.3: passed" in judged.output
    toml.write_text(toml.read_text().replace("requires = []", 'requires = ["no_such_module"]'))
    absent = run("smoke", "mine/adapter.py")
    assert absent.exit_code == 3
    assert "pip install no_such_module" in absent.output
    (tmp_path / "mine" / "known.toml").write_text("[[known]]\nrequirement = 'KVP-NONE-001'\nreason = 'x'\n")
    toml.write_text(toml.read_text().replace('"no_such_module"', ""))
    unknown = run("conformance", "--impl", "mine/adapter.py")
    assert unknown.exit_code == 2
    assert "no requirement 'KVP-NONE-001'" in unknown.output


def test_filled_ranks_survive_every_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the skeleton brings is the protocol: whoever fills in a block manager has it right."""
    test_a_skeleton_is_sane_once_its_blanks_are_filled("ranks", tmp_path, monkeypatch)
    session = session_of(InProcess("mine/adapter.py:make_ranks"), "ranks")
    for case in [c for c in cases() if c.pools] + [rank_faults(seed, ()) for seed in range(100)]:
        session.check(case)
    assert {r.verdict for r in session.results} == {Verdict.PASS, Verdict.UNSUPPORTED}
    unserved = {r.requirement for r in session.results if r.verdict is Verdict.UNSUPPORTED}
    assert "KVP-TP-009" not in unserved
    assert sum(r.verdict is Verdict.PASS for r in session.results) > 90


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "known.toml").write_text("# mine")
    refused = run("new-adapter", "mine")
    assert refused.exit_code == 2
    assert "mine/known.toml: already there; nothing was written" in refused.output
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["known.toml"]
    wrong = run("new-adapter", "my-adapter")
    assert wrong.exit_code == 2
    assert "'my-adapter' cannot name a Python module" in wrong.output


# ---------------------------------------------------------------- entry points


def test_a_package_ships_its_own_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "proof.py").write_text(
        "from kvproof_impls.plain.adapter import make, make_scheduler, make_uncached\n"
    )
    facts = tmp_path / "their_engine-4.5.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-engine\nVersion: 4.5\nSummary: An engine\n"
    )
    (facts / "entry_points.txt").write_text(
        "[kvproof.subjects]\ntheirs = their_engine.proof\ntheirs_off = their_engine.proof:make_uncached\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the process in which it is judged
    importlib.invalidate_caches()
    rows = [line.split() for line in run("impls").output.splitlines()]
    assert ["theirs", "4.5", "An", "engine"] in rows
    assert ["theirs_off:make_uncached", "4.5", "An", "engine"] in rows
    said = run("smoke", "theirs")
    assert (said.exit_code, "prefix" in said.output) == (0, True), said.output
    assert "prefix" not in run("smoke", "theirs_off").output
    assert run("smoke", "theirs", "--profile", "scheduler").exit_code == 0
    results = tmp_path / "results"
    judged = run(
        "conformance", "--impl", "theirs", "--requirement", "TABLE-001", "--histories", "0",
        "--results", str(results),
    )  # fmt: skip
    assert judged.exit_code == 0, judged.output
    (path,) = results.rglob("*.jsonl")
    assert (read(path).header.implementation, read(path).header.version) == ("theirs", "4.5")
    missing = run("smoke", "no_such_name")
    assert "theirs, theirs_off" in missing.output
    sys.modules.pop("their_engine", None)


# ---------------------------------------------------------------- messages


def test_the_messages_of_a_small_history_fit_their_schemas() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas = [
        json.loads((find_specs() / "schemas" / f"process-{side}.json").read_text())
        for side in ("request", "answer")
    ]
    requests, answers = run("protocol", "--send").output, run("protocol", "--answers").output
    lines = [[json.loads(line) for line in text.splitlines()] for text in (requests, answers)]
    assert len(lines[0]) == len(lines[1]) > 15
    unknown = lines[0].pop()
    for schema, messages in zip(schemas, lines, strict=True):
        for message in messages:
            jsonschema.validate(message, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(unknown, schemas[0])
    assert lines[1][-1] == {"err": "Unsupported", "msg": "no request 'teleport'"}
    both = run("protocol").output
    assert both.count("\n-> ") == both.count("\n<- ") == len(lines[1])
    assert both.count("\n# ") > 10
    assert run("protocol", "--send", "--answers").exit_code == 2

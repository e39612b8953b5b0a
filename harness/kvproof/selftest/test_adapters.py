"""What meets who writes an adapter: smoke, a factory of another profile, shapes left out, a checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof.cli import main
from kvproof.contract import Refused
from kvproof.report.results import read
from kvproof.report.summary import summarize
from kvproof_impls.checkout import VARIABLE, open_package
from kvproof_impls.reference.manager import Manager


def kvproof(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


def even(num_blocks: int, block_size: int) -> Manager:
    """Serves no blocks of an odd size."""
    if block_size % 2:
        raise Refused("blocks of an odd size are not served")
    return Manager(num_blocks, block_size)


@pytest.mark.parametrize(
    "arguments",
    [
        ("plain",),
        ("plain:make_scheduler",),
        ("plain", "--profile", "scheduler"),
        ("reference:make_scheduler_swap",),
    ],
)
def test_smoke_sees_by_the_factory_what_it_makes(arguments: tuple[str, ...]) -> None:
    status, said = kvproof("smoke", *arguments)
    assert (status, said.splitlines()[-1]) == (0, f"{arguments[0]}: the adapter is sane")


SEVERAL = """
from kvproof_impls.plain.manager import PlainManager

def helper(a, b): ...
def make_scheduler(num_blocks, block_size, max_seqs, max_tokens): ...
def make_rank_process(rank, world, num_blocks, block_size, rendezvous, *, timeout, tap): ...
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SEVERAL, "name one that it has: :make_scheduler (scheduler), :make_rank_process (ranks)"),
        ("class A:\n def __init__(self, pools, block_size, network): ...\nmake_ranks = A",
         "name the one that it has: :make_ranks (ranks)\n"),
        ("class A:\n def __init__(self, num_blocks, block_size): ...", "that it has: :A (manager)"),
        ("def make_it(): ...", "that it has: :make_it (kernel)"),
        ("def helper(): ...", "callables there: :helper"),
        ("", "callables there: none"),
    ],
)  # fmt: skip
def test_a_file_without_make_is_told_which_factory_it_has(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    status, said = kvproof("smoke", str(path))
    assert (status, "has no factory 'make'" in said) == (2, True), said
    assert words in said
    assert "PlainManager" not in said
    assert ("; other callables there: :helper" in said) == (text == SEVERAL)


def misspelt(num_blocks: int, block_size: int) -> Manager:
    manager = Manager(num_blocks, block_size)
    manager.policy = {"evicts": "lru"}  # type: ignore[typeddict-unknown-key]
    return manager


def of_another_profile(num_blocks: int, block_size: int) -> Manager:
    manager = Manager(num_blocks, block_size)
    manager.capabilities = frozenset({"lse"})
    return manager


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("misspelt", "policy has 'evicts', which is not known; allowed: order, overtake"),
        ("of_another_profile", "capability 'lse' is not known; allowed for a "),
    ],
)
def test_a_name_that_nobody_reads_is_wrong_usage(name: str, words: str, tmp_path: Path) -> None:
    where = f"{__name__}:{name}"
    for command in ("conformance", "bench"):
        status, said = kvproof(command, "--impl", where, "--results", str(tmp_path))
        assert (status, words in " ".join(said.split())) == (2, True), said
    status, said = kvproof("smoke", where)
    assert status in (1, 2)
    assert words in said


def test_a_key_of_impl_toml_that_nobody_reads_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "impl.toml"
    path.write_text('name = "mine"\nrequire = ["torch"]\n')
    monkeypatch.setattr(sys.modules["kvproof.subjects.find"], "_folders", lambda: {"mine": tmp_path})
    for arguments in (("impls",), ("smoke", "mine")):
        status, said = kvproof(*arguments)
        assert status == 2
        assert "'require' is not known; allowed: name, summary, version, requires" in said
    path.write_text("name =")
    assert "not TOML" in kvproof("impls")[1]


@pytest.mark.parametrize(
    ("arguments", "profile"),
    [
        (("smoke", "plain:make", "--profile", "scheduler"), "manager"),
        (("conformance", "--impl", "plain:make", "--profile", "scheduler"), "manager"),
        (("conformance", "--impl", "plain:make_scheduler"), "scheduler"),
    ],
)
def test_a_factory_of_another_profile_is_told_from_its_arguments(
    arguments: tuple[str, ...], profile: str, tmp_path: Path
) -> None:
    results = ("--results", str(tmp_path)) if arguments[0] == "conformance" else ()
    status, said = kvproof(*arguments, *results)
    assert status == 2
    assert "the factory takes (num_blocks, block_size" in said
    assert f"give --profile {profile}" in said


def test_shapes_that_the_factory_refuses_are_counted(tmp_path: Path) -> None:
    where = f"{__name__}:even"
    status, said = kvproof(
        "conformance", "--impl", where, "--requirement", "POOL-001", "--histories", "60",
        "--results", str(tmp_path),
    )  # fmt: skip
    (path,) = tmp_path.glob("*/*.jsonl")
    left_out = read(path).footer.left_out
    assert status == 0
    assert list(left_out) == ["Refused: blocks of an odd size are not served"]
    assert f"{sum(left_out.values())} of them left out" in said
    assert summarize(read(path)).left_out()[0].endswith(next(iter(left_out)))


def test_a_package_of_a_checkout_is_opened_without_its_init(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("engine_there", "engine_there.config", "engine_there.blocks"):
        monkeypatch.setitem(sys.modules, name, None)  # undone at the end, whatever is put there
    package = tmp_path / "engine_there"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('needs a GPU')")
    (package / "config.py").write_text("raise RuntimeError('loads a model')")
    (package / "blocks.py").write_text("from engine_there.config import Config\nsize = Config(n=3).n")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    del sys.modules["engine_there.blocks"]
    (config,) = open_package("engine_there", "config")
    assert importlib.import_module("engine_there.blocks").size == 3
    assert sys.modules["engine_there.config"] is config


def test_without_a_checkout_it_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ImportError, match="--checkout DIR"):
        open_package("nowhere")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ImportError, match="no checkout that holds nowhere"):
        open_package("nowhere")

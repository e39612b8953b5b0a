"""What adapters to repositories without a package share: opening a checkout, engines that call the model."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from kvproof import ledger, spec
from kvproof.conformance.citing import DRAWN, case_names
from kvproof.contract import BadInput, OutOfBlocks, Refused
from kvproof_impls import checkout
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import VARIABLE, open_folder, open_package
from kvproof_impls.inside import InsideScheduler, Loop

ADAPTERS = sorted(
    path
    for path in Path(checkout.__file__).parent.glob("*/impl.toml")
    if "checkout" in tomllib.loads(path.read_text(encoding="utf-8"))
)


def test_a_folder_and_a_package_below_one_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    package = tmp_path / "src" / "opened_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('needs a GPU')")
    (package / "pool.py").write_text("blocks = 3")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "opened_flat.py").write_text("import opened_model\nmodel = opened_model.Model")
    open_package("opened_package", under="src")
    assert importlib.import_module("opened_package.pool").blocks == 3
    open_folder("flat", "opened_model")
    assert importlib.import_module("opened_flat").model
    with pytest.raises(ImportError, match=f"{tmp_path} is no checkout that holds elsewhere"):
        open_folder("elsewhere")


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.parent.name)
def test_a_known_failure_says_the_commit_that_has_it(path: Path) -> None:
    version = tomllib.loads(path.read_text(encoding="utf-8"))["version"]
    known = ledger.load(path.with_name("known.toml"), spec.load().requirements, case_names(), DRAWN)
    assert all(entry.reason.startswith(f"{version}: ") for entry in known)


class Cache(ByToken):
    """A pool of two tokens."""

    full = IndexError

    def __init__(self) -> None:
        self.live, self.pool = {}, [0, 1]

    def start(self, seq: int, tokens: list[int]) -> list[int]:
        return []

    def grow(self, cache: list[int], token: int) -> None:
        cache.append(self.pool.pop())

    def free(self, seq: int) -> None:
        self.pool += self.live.pop(seq)


def test_a_failed_add_by_token_gives_back_what_it_took() -> None:
    cache = Cache()
    with pytest.raises(OutOfBlocks):
        cache.add(0, [1, 2, 3])
    assert (len(cache.pool), cache.live) == (2, {})
    assert cache.add(0, [1, 2]) == 0
    with pytest.raises(BadInput):
        cache.add(0, [1])
    with pytest.raises(OutOfBlocks):
        cache.append(0, [3])


class Engine:
    """Computes each prompt in a call of the model of its own, then all others in one."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.waiting, self.running = loop, dict[int, int](), dict[int, list[int]]()

    def step(self) -> None:
        self.loop.hand_over([])
        older = list(self.running)
        while self.waiting:
            rid, length = self.waiting.popitem()
            if length > 9:
                raise MemoryError("too long")
            self.running[rid] = [self.loop.hand_over([(rid, 0, length, [rid])])[0]]
        if older:
            tokens = self.loop.hand_over([(rid, 5, 6, [rid]) for rid in older])
            for rid, token in zip(older, tokens, strict=True):
                self.running.get(rid, []).append(token)


class Scheduler(InsideScheduler):
    capabilities = frozenset({"output"})

    def __init__(self) -> None:
        loop = Loop()
        engine = Engine(loop)
        super().__init__(loop, engine.step)
        self.engine = engine

    def request(self, rid: int, tokens: list[int], max_new: int) -> int:
        if max_new > 2:
            raise ValueError("at most 2")
        self.engine.waiting[rid] = len(tokens)
        return rid

    def drop(self, request: int) -> None:
        self.engine.running.pop(request, None)

    def ended(self, request: int) -> bool:
        return len(self.engine.running.get(request, ())) == 2


def test_each_call_of_a_model_inside_a_step_is_a_plan() -> None:
    scheduler = Scheduler()
    assert scheduler.plan() == []
    assert scheduler.feed([]) == []
    with pytest.raises(Refused, match="at most 2"):
        scheduler.submit(7, [1], 3)
    scheduler.submit(0, [1, 2], 2)
    assert scheduler.plan() == [(0, 0, 2, [0])]
    assert scheduler.feed([10]) == []
    scheduler.submit(1, [1, 2, 3], 2)
    assert scheduler.plan() == [(1, 0, 3, [1])]  # the step's first call
    assert scheduler.feed([20]) == []
    assert scheduler.plan() == [(0, 5, 6, [0])]  # its second
    assert scheduler.feed([11]) == [0]
    assert scheduler.engine.running == {0: [10, 11], 1: [20]}
    scheduler.abort(1)
    assert not scheduler.has_work()


def test_who_is_aborted_between_two_calls_of_a_step_has_no_row() -> None:
    scheduler = Scheduler()
    scheduler.submit(0, [1], 2)
    scheduler.plan()
    scheduler.feed([10])
    scheduler.submit(1, [1], 2)
    scheduler.plan()
    scheduler.feed([20])
    scheduler.abort(0)
    assert scheduler.plan() == []
    assert scheduler.feed([]) == []


def test_an_error_in_the_loop_is_raised_in_the_plan() -> None:
    scheduler = Scheduler()
    scheduler.submit(0, [1] * 10, 2)
    with pytest.raises(RuntimeError, match="too long"):
        scheduler.plan()

"""Every planted mistake in the CUDA source is noticed by the builds of the shim that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
paged_calls = pytest.importorskip("kvproof.selftest.paged_calls")
host_build = pytest.importorskip("kvproof_kernels.host_build")
mutants = pytest.importorskip("kvproof_kernels.mutants")
shim = pytest.importorskip("kvproof_kernels.shim")

Call = paged_calls.Call
BUILDS = ("plain", "asan", "tsan")
PLANTED = list(mutants.MUTANTS.values())


def core_of(mutant: Any) -> str:
    return "tensor" if mutant.core == "any" else mutant.core


CASES = sorted({(m.shows, core_of(m), build) for m in PLANTED for build in m.builds})


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        host_build.compiler()
    except host_build.NoCompiler as missing:
        pytest.skip(str(missing))


# ---- cases: each raises when the kernel is wrong ----------------------------------------------------------


def lengths(subject: Any, core: str) -> None:
    """Several splits, then one; empty rows; groups that fill no tile."""
    group, heads = (3, 2) if core == "tensor" else (1, 2)
    subject.splits = 3
    Call("bf16", 64, 16, heads, group, [33, 0, 190, 16]).check(subject)
    subject.splits = 1
    Call("bf16", 64, 16, heads, group, [130, 1, 47]).check(subject)


def long_table(subject: Any, core: str) -> None:
    subject.splits = 1
    Call("bf16", 64, 1, 2, 3 if core == "tensor" else 1, [700]).check(subject)


def features(subject: Any, core: str) -> None:
    call = Call("bf16", 64, 16, 1, 3 if core == "tensor" else 1, [33, 90])
    alibi = torch.linspace(0.1, 1, call.q.shape[1])
    call.check(subject, softcap=1.5, alibi=alibi, window=20, k_scale=2.0, v_scale=0.5)


def large_pool(subject: Any, core: str) -> None:
    far, near = paged_calls.far_call(), paged_calls.near_call()
    assert torch.equal(far.run(subject)[0], near.run(subject)[0])


def prefill(subject: Any, core: str) -> None:
    Call("bf16", 64, 16, 1, 3, [40, 150], "NHD", [7, 30]).check(subject)
    Call("bf16", 64, 16, 1, 3, [40], "NHD", [7]).check_spoilt(subject)


def write(subject: Any, core: str) -> None:
    k, v = torch.ones(2, 3, 2, 64)
    caches = torch.zeros(2, 4, 4, 2, 64)
    want = caches.clone()
    want[:, 1, 3] = want[:, 2, 0] = 1
    subject.write(k, v, caches[0], caches[1], torch.tensor([7, -1, 8]))
    assert torch.equal(caches, want)


def copy_blocks(subject: Any, core: str) -> None:
    cache = torch.arange(6.0)[:, None, None].repeat(1, 4, 64)
    want = cache[[0, 0, 0, 3, 4, 4]]
    subject.copy_blocks([cache], [(0, 1), (1, 2), (4, 5)])
    assert torch.equal(cache, want)


RUN: dict[str, Callable[[Any, str], None]] = {
    "lengths": lengths,
    "long table": long_table,
    "features": features,
    "large pool": large_pool,
    "prefill": prefill,
    "write": write,
    "copy_blocks": copy_blocks,
}


def noticed(mutant: Any, build: str) -> str:
    """What this build says of the mistake; nothing if it runs as if it were right."""
    subject = shim.Shim(build, cuda=mutants.mutated_source(mutant.name))
    try:
        RUN[mutant.shows](subject, core_of(mutant))
    except shim.ShimStopped as stop:
        return str(stop)
    except AssertionError:
        return "wrong result"
    return ""


@pytest.mark.parametrize(("shows", "core", "build"), CASES)
def test_the_source_as_it_is_passes(shows: str, core: str, build: str) -> None:
    RUN[shows](shim.Shim(build), core)


@pytest.mark.parametrize(("name", "build"), [(m.name, build) for m in PLANTED for build in m.builds])
def test_the_mistake_is_noticed(name: str, build: str) -> None:
    assert noticed(mutants.MUTANTS[name], build)


def test_a_mutant_that_no_longer_fits_the_source_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = mutants.Mutant(
        "gone", "KVP-KERN-001", ("plain",), "lengths", (("decode.cuh", "no such text", ""),)
    )
    monkeypatch.setitem(mutants.MUTANTS, "gone", gone)
    with pytest.raises(mutants.Unplantable, match=r"decode.cuh has 'no such text' 0 times"):
        mutants.mutated_source("gone")


def test_what_is_planted_covers_what_it_must() -> None:
    assert len(PLANTED) >= 25
    assert {build for m in PLANTED for build in m.builds} == set(BUILDS)
    assert len({m.requirement for m in PLANTED}) >= 12
    assert all((Path(mutants.CUDA) / file).is_file() for m in PLANTED for file, _, _ in m.changes)

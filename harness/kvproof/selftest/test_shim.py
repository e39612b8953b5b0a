"""The shim runs the CUDA kernels right, and stops at what is wrong."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
paged_calls = pytest.importorskip("kvproof.selftest.paged_calls")
host_build = pytest.importorskip("kvproof_kernels.host_build")
shim = pytest.importorskip("kvproof_kernels.shim")
variant = pytest.importorskip("kvproof_kernels.variant")

BUILDS = ("plain", "asan", "tsan")
Call = paged_calls.Call
DTYPES = paged_calls.DTYPES


@pytest.fixture(autouse=True)
def _compiler() -> None:
    try:
        host_build.compiler()
    except host_build.NoCompiler as missing:
        pytest.skip(str(missing))


DECODE = [
    Call("fp32", 64, 5, 2, 1, [0, 1, 5, 6, 70], "HND"),
    Call("bf16", 128, 16, 1, 4, [33, 0, 300]),
    Call("fp8_e4m3", 80, 7, 2, 3, [14, 41]),
]
PREFILL = [
    Call("bf16", 64, 16, 2, 3, [40, 0, 97], "HND", [7, 0, 97]),
    Call("fp32", 64, 3, 1, 2, [11, 50], "NHD", [11, 4]),
    Call("fp8_e4m3", 96, 16, 1, 4, [20], "NHD", [20]),
]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("call", DECODE + PREFILL, ids=lambda call: f"{call.dtype}-{call.queries}")
def test_attention_agrees_with_float64(call: Any, build: str) -> None:
    if build == "tsan" and call not in (DECODE[1], PREFILL[0]):
        pytest.skip("one of each is enough under the slowest build")
    scales = {"k_scale": 0.5, "v_scale": 2.0} if call.dtype == "fp8_e4m3" else {}
    call.check(shim.Shim(build), **scales)


@pytest.mark.parametrize("call", [DECODE[1], PREFILL[0]], ids=["decode", "prefill"])
def test_features_agree_with_float64(call: Any) -> None:
    subject = shim.Shim()
    alibi = torch.linspace(0.1, 1, call.q.shape[1])
    call.check(subject, window=9)
    call.check(subject, softcap=1.5, alibi=alibi, window=20, k_scale=2.0, v_scale=0.5)


@pytest.mark.parametrize("call", [DECODE[1], PREFILL[1]], ids=["decode", "prefill"])
def test_every_order_of_threads_gives_the_same_bits(call: Any) -> None:
    results = [call.run(shim.Shim(seed=seed)) for seed in range(4)]
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


@pytest.mark.parametrize("left_out", ["STAGED", "COALESCED", "PREFETCH", "BYPASS", "ALL"])
def test_techniques_change_no_result(left_out: str) -> None:
    techniques = variant.Technique.ALL & ~variant.Technique[left_out]
    DECODE[1].check(shim.Shim(techniques=techniques))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["fp32", "fp8_e4m3"])
def test_write_changes_exactly_the_mapped_slots(dtype: str, layout: str, build: str) -> None:
    if build == "tsan" and (dtype, layout) != ("fp32", "NHD"):
        pytest.skip("one is enough under the slowest build")
    blocks, size, heads, dim = 3, 4, 2, 64
    k, v = torch.randn(2, 5, heads, dim).to(torch.float32 if dtype == "fp32" else torch.bfloat16)
    slots = torch.tensor([3, -1, 4, 11, 6])
    scales = {"k_scale": 0.5, "v_scale": 0.3} if dtype == "fp8_e4m3" else {}
    shape = (blocks, size, heads, dim) if layout == "NHD" else (blocks, heads, size, dim)
    caches = [torch.full(shape, 7.0).to(DTYPES[dtype]) for _ in "kv"]
    want = [x.clone() for x in caches]
    for source, target, scale in zip((k, v), want, scales.values() or (1, 1), strict=True):
        rows = target.view(torch.uint8 if dtype == "fp8_e4m3" else torch.float32)
        rows = rows if layout == "NHD" else rows.transpose(1, 2)
        for i, slot in enumerate(slots.tolist()):
            if slot >= 0:
                stored = (source[i].float() / scale).to(DTYPES[dtype])
                rows[slot // size, slot % size] = stored.view(rows.dtype)
    shim.Shim(build).write(k, v, *caches, slots, layout, **scales)
    for got, wanted in zip(caches, want, strict=True):
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("build", BUILDS)
def test_copy_blocks_goes_pair_by_pair(build: str) -> None:
    caches = [torch.randn(6, 4, 2, 64), torch.randn(6, 3, 5).to(torch.float16)]
    pairs = [(0, 1), (1, 2), (4, 0), (2, 5)]
    want = [x.clone() for x in caches]
    for x in want:
        for source, target in pairs:
            x[target] = x[source]
    shim.Shim(build).copy_blocks(caches, pairs)
    assert all(torch.equal(a, b) for a, b in zip(caches, want, strict=True))


def test_interleaved_caches_keep_one_another() -> None:
    both = torch.zeros(3, 2, 4, 1, 64)
    k, v = torch.randn(2, 1, 1, 64)
    shim.Shim("asan").write(k, v, both[:, 0], both[:, 1], torch.tensor([5]))
    assert torch.equal(both[1, 0, 1], k[0])
    assert torch.equal(both[1, 1, 1], v[0])
    assert both.count_nonzero() == k.count_nonzero() + v.count_nonzero()


@pytest.mark.parametrize("build", ["plain", "asan"])
def test_a_pool_of_more_than_2_31_elements_costs_only_its_live_rows(build: str) -> None:
    call = paged_calls.far_call()
    out, _ = call.run(shim.Shim(build))
    assert torch.equal(out, paged_calls.near_call().run(shim.Shim(build))[0])


# ---- stops ------------------------------------------------------------------------------------------------


def changed(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the kernels' source with one change."""
    folder.mkdir()
    for source in shim.CUDA.iterdir():
        text = source.read_text()
        assert source.name != file or text.count(old) == 1
        (folder / source.name).write_text(text.replace(old, new) if source.name == file else text)
    return folder


def stop_of(subject: Any, call: Callable[[Any], object]) -> Any:
    with pytest.raises(shim.ShimStopped) as stopped:
        call(subject)
    return stopped.value


def write_one(subject: Any, slots: int = 1) -> None:
    k, v = torch.ones(2, 1, 1, 64)
    caches = torch.zeros(2, 2, 4, 1, 64)
    subject.write(k, v, caches[0], caches[1], torch.tensor([slots]))


TARGET = ("cache.cuh", "const long long target = to + ", "const long long target = to + p.stride_token + ")
SOURCE = ("cache.cuh", "(const Source*)p.k + source", "(const Source*)p.k + source + (1ll << 40)")


@pytest.mark.parametrize("build", ["plain", "asan"])
def test_a_write_outside_the_mapped_slots_is_a_stop(build: str, tmp_path: Path) -> None:
    stop = stop_of(shim.Shim(build, cuda=changed(tmp_path / "cuda", *TARGET)), write_one)
    assert stop.kind == "memory"
    assert "k_cache" in stop.report


@pytest.mark.parametrize("build", BUILDS)
def test_a_stop_names_block_thread_and_line(build: str, tmp_path: Path) -> None:
    folder = changed(tmp_path / "cuda", *SOURCE)
    lines = (folder / "cache.cuh").read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if "1ll << 40" in line)
    stop = stop_of(shim.Shim(build, cuda=folder), write_one)
    assert stop.kind == "memory"
    assert "in block (0,0,0), thread (" in stop.report
    assert f"cache.cuh:{number}" in stop.report
    assert str(tmp_path) not in stop.report


@cache
def program(name: str, build: str) -> Path:
    """One of simt/'s own programs."""
    flags = [*shim.COMMON, *shim.FLAGS[build]]
    own = ["-fno-sanitize=thread", "-DSIMT_TSAN"] if build == "tsan" else []
    objects = [
        host_build.build([shim.SIMT / "simt.cpp"], [*flags, *own, "-c"], "exe"),
        host_build.build([shim.SIMT / f"{name}.cpp"], [*flags, "-c"], "exe"),
    ]
    built: Path = host_build.build(objects, flags, "exe")
    return built


def test_races_are_told_from_none() -> None:
    reports = []
    for number in range(1, 7):
        done = subprocess.run([program("races", "tsan"), str(number)], capture_output=True, text=True)
        reports.append(done.stderr.count("WARNING: ThreadSanitizer: data race"))
    assert reports == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("build", BUILDS)
def test_the_shim_stops_at_what_threads_must_not_do(build: str) -> None:
    expected = [
        (0, ""),
        (1, "barrier: threads of a block meet at different barriers"),
        (2, "barrier: lanes of a warp meet at different collectives"),
        (3, "barrier: a lane calls a warp collective whose mask leaves it out"),
        (4, "barrier: deadlock"),
        (5, "race: a thread ended with asynchronous copies in flight"),
        (6, "memory: an asynchronous copy ends outside shared memory"),
        (7, "memory: an asynchronous copy is not aligned"),
    ]
    for number, fault in expected:
        done = subprocess.run([program("stops", build), str(number)], capture_output=True, text=True)
        assert (done.returncode == 0) == (number == 0), done.stderr
        assert fault in done.stderr
        assert number == 0 or "in block (" in done.stderr


def test_bad_input_names_what_is_allowed() -> None:
    subject = shim.Shim()
    call = DECODE[1]
    with pytest.raises(ValueError, match="head size is 72; the CUDA kernels serve 64, 80"):
        Call("bf16", 72, 16, 1, 1, [3]).run(subject)
    cache = (call.k, call.v, call.table)
    for length, named in (
        (999, "a sequence has 999 tokens; block_table has room for"),
        (call.table.shape[1] * 16, "block_table holds block -1"),
    ):
        lens = torch.tensor([length, 0, 0], dtype=torch.int32)
        with pytest.raises(ValueError, match=named):
            subject.decode(call.q, *cache, lens, 1.0)
    with pytest.raises(ValueError, match="build is 'fast'; allowed: plain, asan, tsan"):
        shim.Shim("fast")


def test_nothing_to_do_is_done() -> None:
    empty = torch.zeros(0, 1, 64)
    cache = torch.zeros(2, 4, 1, 64)
    shim.Shim().write(empty, empty, cache, cache.clone(), torch.zeros(0, dtype=torch.int64))
    shim.Shim().copy_blocks([cache], [])
    assert np.count_nonzero(cache.numpy()) == 0

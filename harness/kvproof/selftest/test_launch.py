"""Launching on a GPU, without one: calls of gpu.py run by the shim, and nvcc's library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from kvproof_kernels import gpu, host_build, nvcc  # noqa: E402  (they import torch)
from kvproof_kernels.cache_params import MOST_CACHES, CopyParams  # noqa: E402
from kvproof_kernels.launch import Call, Launch, LaunchFailed, NvccGpu, _Loaded, _same_size  # noqa: E402
from kvproof_kernels.problem import ITEM_BYTES, decode_problem  # noqa: E402
from kvproof_kernels.variant import HEAD_SIZES, Params, Technique, make_variant  # noqa: E402

KERNELS = Path(gpu.__file__).parent


class ShimGpu:
    """A device that runs a call's C function on the CPU, by the shim, in this process."""

    arch = "sm_90"
    sms = 4

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def start(self, call: Call, stream: int, capturing: bool) -> None:
        self.calls.append(call)
        flags = ["-O1", "-x", "c++", "-Wno-unknown-pragmas", f"-I{KERNELS / 'simt'}"]
        sources = [KERNELS / "cuda" / call.entry, KERNELS / "simt" / "simt.cpp"]
        library = ctypes.CDLL(str(host_build.build(sources, flags, "so", call.defines)))
        function = getattr(library, call.function)
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        assert getattr(library, f"{call.function}_bytes")() == ctypes.sizeof(call.params)
        assert function(ctypes.byref(call.params), stream) == 0


class Recorder(ShimGpu):
    """A device that runs nothing."""

    def start(self, call: Call, stream: int, capturing: bool) -> None:
        self.calls.append(call)


def use(device: ShimGpu, monkeypatch: pytest.MonkeyPatch) -> ShimGpu:
    monkeypatch.setattr(gpu, "_queue", lambda tensor: (device, 7, False))
    return device


@pytest.fixture
def shim(monkeypatch: pytest.MonkeyPatch) -> ShimGpu:
    try:
        host_build.compiler()
    except host_build.NoCompiler as missing:
        pytest.skip(str(missing))
    return use(ShimGpu(), monkeypatch)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> ShimGpu:
    return use(Recorder(), monkeypatch)


def pool(dtype: Any, kv_heads: int = 2, dim: int = 64, layout: str = "NHD") -> tuple[Any, Any]:
    shape = (40, 16, kv_heads, dim) if layout == "NHD" else (40, kv_heads, 16, dim)
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for _ in "kv")


LENGTHS = [0, 1, 16, 33, 150]


def tables() -> tuple[Any, Any]:
    table = torch.full((len(LENGTHS), 10), -1, dtype=torch.int32)
    blocks = iter(torch.randperm(40, generator=torch.Generator().manual_seed(6)).tolist())
    for row, length in enumerate(LENGTHS):
        for column in range(-(-length // 16)):
            table[row, column] = next(blocks)
    return table, torch.tensor(LENGTHS, dtype=torch.int32)


def expected(
    q: Any, k_cache: Any, v_cache: Any, table: Any, row: int, seen: int, scale: float
) -> tuple[Any, Any]:
    """Float64 attention of one query [Hq, D] to the first `seen` tokens of a row, NHD: out and lse."""
    at = torch.arange(seen)
    where = table[row, at // 16].long(), at % 16
    group = q.shape[0] // k_cache.shape[2]
    k, v = (cache[where].double().repeat_interleave(group, 1) for cache in (k_cache, v_cache))
    scores = torch.einsum("hd,thd->ht", q.double(), k) * scale
    return torch.einsum("ht,thd->hd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("dtype", "heads", "bound"), [(torch.float32, 2, 1e-5), (torch.bfloat16, 8, 2e-2)])
def test_decode_through_the_shim(shim: ShimGpu, dtype: Any, heads: int, bound: float, splits: int) -> None:
    k_cache, v_cache = pool(dtype)
    table, lens = tables()
    q = torch.randn(len(LENGTHS), heads, 64, generator=torch.Generator().manual_seed(7)).to(dtype)
    out, lse = gpu.decode(q, k_cache, v_cache, table, lens, 0.125, splits=splits)
    assert len(shim.calls[0].launches) == (1 if splits == 1 else 2)
    assert not out[0].any()
    assert bool((lse[0] == -torch.inf).all())
    for row, length in enumerate(LENGTHS[1:], 1):
        want, want_lse = expected(q[row], k_cache, v_cache, table, row, length, 0.125)
        assert (out[row].double() - want).abs().max() < bound
        assert (lse[row].double() - want_lse).abs().max() < 1e-3


def test_prefill_through_the_shim(shim: ShimGpu) -> None:
    k_cache, v_cache = pool(torch.float32)
    table, lens = tables()
    counts = [0, 1, 16, 2, 5]
    ends = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn(sum(counts), 2, 64, generator=torch.Generator().manual_seed(8))
    out, lse = gpu.prefill(q, ends, k_cache, v_cache, table, lens, 0.125)
    for row, (count, length) in enumerate(zip(counts, LENGTHS, strict=True)):
        for i in range(count):
            at = int(ends[row]) + i
            want, want_lse = expected(q[at], k_cache, v_cache, table, row, length - count + i + 1, 0.125)
            assert (out[at].double() - want).abs().max() < 1e-5
            assert (lse[at].double() - want_lse).abs().max() < 1e-5


def test_write_and_copy_through_the_shim(shim: ShimGpu) -> None:
    k_cache, v_cache = pool(torch.float32)
    before = k_cache.clone(), v_cache.clone()
    k, v = torch.randn(3, 2, 64), torch.randn(3, 2, 64)
    gpu.write(k, v, k_cache, v_cache, torch.tensor([17, -1, 639]))
    for cache, was, new in ((k_cache, before[0], k), (v_cache, before[1], v)):
        was[1, 1], was[39, 15] = new[0], new[2]
        assert torch.equal(cache, was)
    gpu.copy_blocks([k_cache, v_cache], [(1, 2), (2, 5)])
    for cache, was in ((k_cache, before[0]), (v_cache, before[1])):
        was[2] = was[5] = was[1]
        assert torch.equal(cache, was)
    gpu.copy_blocks([k_cache], torch.tensor([[5, 6]]))
    assert torch.equal(k_cache[6], k_cache[1])


def test_more_caches_than_a_launch_takes(shim: ShimGpu) -> None:
    caches = torch.arange(3.0).repeat(MOST_CACHES + 2, 1)[:, :, None].repeat(1, 1, 4).contiguous()
    gpu.copy_blocks(list(caches), [(1, 0), (2, 1)])
    assert [call.params.cache_count for call in shim.calls] == [MOST_CACHES, 2]
    assert (caches[:, :, 0] == torch.tensor([1.0, 2.0, 2.0])).all()
    with pytest.raises(RuntimeError, match=r"f takes 12 bytes of parameters, CopyParams has \d+"):
        _same_size("f", 12, CopyParams())


def test_grids_do_not_depend_on_lengths(recorder: ShimGpu) -> None:
    k_cache, v_cache = pool(torch.bfloat16)
    table, lens = tables()
    q = torch.zeros(len(LENGTHS), 8, 64, dtype=torch.bfloat16)
    for length in (0, 150):
        gpu.decode(q, k_cache, v_cache, table, torch.full_like(lens, length), 0.125)
    one, two = recorder.calls
    assert one.launches == two.launches
    assert one.launches[0].grid == (one.params.splits, 2, 5)
    assert one.params.splits * one.params.split_tokens >= 160


def test_an_empty_batch_starts_nothing(recorder: ShimGpu) -> None:
    k_cache, v_cache = pool(torch.float32)
    table, lens = tables()
    out, lse = gpu.decode(torch.zeros(0, 2, 64), k_cache, v_cache, table[:0], lens[:0], 1.0)
    assert (out.shape, lse.shape) == ((0, 2, 64), (0, 2))
    assert all(0 in launch.grid for call in recorder.calls for launch in call.launches)
    gpu.copy_blocks([k_cache], [])
    gpu.copy_blocks([], [(0, 1)])
    assert len(recorder.calls) == 1


@pytest.mark.parametrize("techniques", [Technique.NONE, Technique.STAGED | Technique.BYPASS])
def test_techniques_reach_the_kernel(recorder: ShimGpu, techniques: Technique) -> None:
    k_cache, v_cache = pool(torch.bfloat16)
    table, lens = tables()
    q = torch.zeros(len(LENGTHS), 8, 64, dtype=torch.bfloat16)
    gpu.decode(q, k_cache, v_cache, table, lens, 0.125, techniques=techniques)
    assert recorder.calls[0].launches[0].expression.endswith(f", {int(techniques)}>")


def test_says_what_it_does_not_serve() -> None:
    k_cache, v_cache = pool(torch.float32)
    table, lens = tables()
    q = torch.zeros(len(LENGTHS), 2, 64)
    with pytest.raises(ValueError, match="on cpu; the CUDA kernels serve tensors on a GPU"):
        gpu.decode(q, k_cache, v_cache, table, lens, 0.125)
    with pytest.raises(ValueError, match=r"grid\.z of kernel would be 65536; CUDA allows 65535"):
        Launch("a.cuh", "kernel", (1, 1, 65536), 128)


def test_says_which_address_is_off(recorder: ShimGpu) -> None:
    k_cache, v_cache = pool(torch.float32)
    table, lens = tables()
    q = torch.zeros(len(LENGTHS) * 128 + 1)[1:].view(-1, 2, 64)
    with pytest.raises(ValueError, match="q begins at no multiple of 16 bytes"):
        gpu.decode(q, k_cache, v_cache, table, lens, 0.125)
    assert decode_problem(q, k_cache, v_cache, table, lens, 0.125).batch == len(LENGTHS)


def test_a_capture_loads_nothing() -> None:
    loaded = _Loaded()
    with pytest.raises(LaunchFailed, match="kernel is not loaded yet, which a graph capture does not allow"):
        loaded.get("key", "kernel", True, lambda: 1)
    assert loaded.get("key", "kernel", False, lambda: 2) == 2
    assert loaded.get("key", "kernel", True, lambda: 3) == 2


def test_nvcc_library_has_the_same_struct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        nvcc.version()
    except nvcc.NoNvcc as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    about = type("About", (), {"major": 9, "minor": 0, "multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    device = NvccGpu(0)
    assert (device.arch, device.sms) == ("sm_90", 132)
    variant = make_variant("bf16", 64, 4)
    library = ctypes.CDLL(str(nvcc.build(variant.entry, "sm_90", variant.defines)))
    assert library.kvproof_decode_bytes() == ctypes.sizeof(Params)
    assert library.kvproof_shared_bytes() == variant.shared_bytes
    if not torch.cuda.is_available():
        params = Params(splits=1, sequences=1, query_heads=4, kv_heads=1)
        call = Call((), params, variant.entry, variant.function, variant.defines)
        with pytest.raises(LaunchFailed, match=r"kvproof_decode of entry\.cu: CUDA error \d+"):
            device.start(call, 0, False)


@pytest.mark.parametrize(
    ("arch", "most"),
    [
        ("sm_80", 163),
        ("sm_86", 99),
        ("sm_89", 99),
        ("sm_90a", 227),
        ("sm_103", 227),
        ("sm_121", 99),
        ("sm_130", 99),
    ],
)
def test_shared_memory_fits_the_chip(arch: str, most: int) -> None:
    for kv in ITEM_BYTES:
        for head_dim in HEAD_SIZES:
            for group in (1, 2, 4, 8):
                variant = make_variant(kv, head_dim, group, arch=arch)
                assert variant.shared_bytes <= most << 10, (kv, head_dim, group)
                assert variant.blocks_per_sm(arch) >= 1

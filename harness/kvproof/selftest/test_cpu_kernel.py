"""The native CPU kernels against float64, on every instruction set that this machine has."""

from __future__ import annotations

import math
import shutil
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not (shutil.which("g++") or shutil.which("clang++")):
    pytest.skip("no C++ compiler: g++ and clang++ not found on PATH", allow_module_level=True)

from kvproof.selftest.paged_calls import DTYPES, Call  # noqa: E402
from kvproof_kernels import cpu as typed  # noqa: E402

cpu: Any = typed  # calls here unpack lists and dictionaries, whose lengths no type knows

ISAS = {"portable": DTYPES, "avx2": DTYPES, "avx512": DTYPES, "avx512_bf16": ("bf16",)}
LENS = [0, 1, 15, 16, 17, 64, 130]
QUERIES = [0, 1, 3, 16, 5, 9, 21]
ALIBI = torch.tensor([2.0**-i for i in range(1, 25)])


class On:
    """The kernels of one instruction set."""

    def __init__(self, isa: str, **options: Any) -> None:
        self.options = {"isa": isa, **options}

    def decode(self, *call: Any, **features: Any) -> Any:
        return cpu.decode(*call, **self.options, **features)

    def prefill(self, *call: Any, **features: Any) -> Any:
        return cpu.prefill(*call, **self.options, **features)


def best(dtype: str) -> On:
    return On(cpu.available_isas(dtype)[0])


def features(heads: int) -> list[dict[str, Any]]:
    return [
        {"softcap": 5.0},
        {"alibi": ALIBI[:heads].contiguous()},
        {"window": 20},
        {"k_scale": 0.5, "v_scale": 3.0},
        {"softcap": 30.0, "alibi": ALIBI[:heads].contiguous(), "window": 33, "k_scale": 1.5, "v_scale": 0.25},
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set(isa: str, dtype: str) -> None:
    if dtype not in ISAS[isa]:
        pytest.skip(f"{isa} differs from avx512 for bf16 alone")
    if isa not in cpu.available_isas(dtype):
        pytest.skip(f"this CPU has no {isa}")
    for layout, group, block_size in (
        ("NHD", 1, 16),
        ("HND", 2, 3),
        ("NHD", 3, 1),
        ("HND", 4, 64),
        ("NHD", 8, 7),
    ):
        call = Call(dtype, 64, block_size, 2, group, LENS, layout)
        call.check(On(isa))
        call.check(On(isa, threads=2, split_tokens=24), **features(2 * group)[4])
    for layout, group in (("NHD", 1), ("HND", 3)):
        call = Call(dtype, 64, 16, 2, group, LENS, layout, QUERIES)
        call.check(On(isa))
        call.check(On(isa, threads=2), **features(2 * group)[4])
        Call(dtype, 64, 16, 2, group, [40, 9], layout, [7, 2]).check_spoilt(On(isa))


@pytest.mark.parametrize("head_dim", [8, 40, 80, 128, 192, 248, 256])
def test_head_sizes(head_dim: int) -> None:
    for layout in ("NHD", "HND"):
        Call("fp32", head_dim, 16, 3, 4, LENS, layout).check(best("fp32"))
    Call("fp32", head_dim, 16, 3, 2, LENS, "NHD", QUERIES).check(best("fp32"))


def test_tiles_of_every_size_reach_all_their_rows() -> None:
    """52 tokens a tile: 4 lanes and 3 KV heads of 104 floats. The order in a tile must be a permutation."""
    Call("fp32", 104, 16, 3, 1, [160, 100]).check(On("portable"))


@pytest.mark.parametrize("which", range(5))
def test_features_one_by_one(which: int) -> None:
    for queries in (None, QUERIES):
        call = Call("fp32", 64, 8, 2, 3, LENS, queries=queries)
        call.check(best("fp32"), **features(6)[which])


@pytest.mark.parametrize("padding", [-1, 2**31 - 1, -(2**31), 12345])
def test_padding_of_the_table_is_not_looked_at(padding: int) -> None:
    call = Call("fp32", 64, 16, 2, 4, LENS)
    call.table[call.table < 0] = padding
    call.check(best("fp32"))


def test_blocks_before_the_window_may_be_gone() -> None:
    for queries in (None, [4]):
        call = Call("fp32", 64, 4, 2, 2, [100], queries=queries)
        want = call.expected(window=10)
        gone = (100 - 10 - (queries or [1])[0] + 1) // 4
        blocks = call.table[0, :gone].long()
        call.k[blocks], call.v[blocks] = math.nan, math.nan
        call.table[0, :gone] = -1
        out, lse = call.run(best("fp32"), window=10)
        torch.testing.assert_close(out.double(), want[0], atol=3e-6, rtol=0)
        torch.testing.assert_close(lse.double(), want[1], atol=1e-5, rtol=0)


def test_threads_change_nothing_and_splits_next_to_nothing() -> None:
    call = Call("fp32", 128, 16, 2, 4, [700, 1, 300])
    isa = cpu.available_isas("fp32")[0]
    one, two, five = (call.run(On(isa, threads=n))[0] for n in (1, 2, 5))
    assert torch.equal(one, two)
    assert torch.equal(one, five)
    for split in (1, 17, 64, 10**12):
        call.check(On(isa, split_tokens=split))


def test_empty_batch() -> None:
    call = Call("fp32", 64, 16, 2, 4, [5])
    out, lse = cpu.decode(call.q[:0], call.k, call.v, call.table[:0], call.seq_lens[:0], 1.0)
    assert out.shape == (0, 8, 64)
    assert lse.shape == (0, 8)


def test_nan_and_infinity_of_live_tokens_come_through() -> None:
    for dtype in DTYPES:
        for isa in cpu.available_isas(dtype):
            call = Call(dtype, 64, 16, 2, 4, [40, 40])
            call.k[int(call.table[1, 2]), 3, 1, 5] = math.nan
            out, lse = call.run(On(isa))
            assert not out[0].isnan().any()
            assert not out[1, :4].isnan().any()
            assert out[1, 4:].isnan().all()
            assert lse[1, 4:].isnan().all()


@pytest.mark.parametrize("dtype", ["fp16", "fp8_e4m3"])
def test_every_number_is_read_exactly(dtype: str) -> None:
    codes, bits = (2**16, torch.int16) if dtype == "fp16" else (2**8, torch.uint8)
    stored = torch.arange(codes, dtype=torch.int64).to(bits).view(DTYPES[dtype]).reshape(-1, 1, 1, 64)
    stored = torch.where(stored.float().isinf(), 0, stored.float()).to(DTYPES[dtype])
    n = stored.shape[0]
    q = torch.zeros(n, 1, 64, dtype=torch.float16 if dtype == "fp16" else torch.bfloat16)
    table, lens = torch.arange(n, dtype=torch.int32).view(n, 1), torch.ones(n, dtype=torch.int32)
    for isa in cpu.available_isas(dtype):
        keys = torch.zeros(n, 1, 1, 64, dtype=q.dtype).to(DTYPES[dtype])
        out, _ = cpu.decode(q, keys, stored, table, lens, 1.0, isa=isa)
        torch.testing.assert_close(out[:, 0].float(), stored[:, 0, 0].float(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_write(dtype: str, layout: str) -> None:
    shape = (5, 4, 3, 16) if layout == "NHD" else (5, 3, 4, 16)
    caches = [torch.zeros(shape).to(DTYPES[dtype]) for _ in "kv"]
    k, v = (torch.randn(4, 3, 16).to(DTYPES[dtype]) for _ in "kv")
    slots = torch.tensor([7, -1, 0, 19])
    cpu.write(k, v, *caches, slots, layout)
    for source, cache in zip((k, v), caches, strict=True):
        rows = (cache.transpose(1, 2) if layout == "HND" else cache).reshape(20, 3, 16).float()
        kept = source.float()[[0, 2, 3]]
        assert torch.equal(rows[[7, 0, 19]], kept)
        assert int(rows.count_nonzero()) == int(kept.count_nonzero())
    before = [cache.float() for cache in caches]
    for bad in (20, -2):
        with pytest.raises(ValueError, match=rf"slot_mapping\[2\] is {bad}; allowed: -1 and 0\.\.19"):
            cpu.write(k, v, *caches, torch.tensor([3, 4, bad, 5]), layout)
    assert all(torch.equal(cache.float(), old) for cache, old in zip(caches, before, strict=True))


def test_write_rounds_to_fp8_as_torch_does() -> None:
    every = torch.arange(2**16).to(torch.int16).view(torch.bfloat16).view(1, 1024, 64)
    inside = torch.where(every.float().abs() <= 448, every.float(), 0).to(torch.bfloat16)
    caches = [torch.zeros(1, 1, 1024, 64).to(torch.float8_e4m3fn) for _ in "kv"]
    cpu.write(inside, every, *caches, torch.tensor([0]), k_scale=2.0)
    want = (inside.float() / 2).to(torch.float8_e4m3fn)
    assert torch.equal(caches[0].view(torch.uint8)[0, 0], want.view(torch.uint8)[0])
    saturated = every.float().clamp(-448, 448)
    torch.testing.assert_close(
        caches[1][0, 0].float(), saturated.to(torch.float8_e4m3fn).float()[0], atol=0, rtol=0, equal_nan=True
    )


def test_copy_blocks_one_pair_after_another() -> None:
    caches = [torch.arange(24.0).view(4, 2, 3), torch.arange(8.0).view(4, 2).half()]
    want = [cache.clone() for cache in caches]
    pairs = [(0, 1), (1, 3), (2, 2)]
    for cache in want:
        for source, target in pairs:
            cache[target] = cache[source].clone()
    cpu.copy_blocks(caches, pairs)
    assert all(torch.equal(cache, expected) for cache, expected in zip(caches, want, strict=True))


def test_bad_input_is_named() -> None:
    call = Call("fp32", 64, 16, 2, 4, [5, 40])
    arguments = (call.q, call.k, call.v, call.table, call.seq_lens, 0.1)
    with pytest.raises(ValueError, match="isa is 'sse9'; this CPU runs"):
        cpu.decode(*arguments, isa="sse9")
    with pytest.raises(ValueError, match="threads must be at least 1"):
        cpu.decode(*arguments, threads=0)
    with pytest.raises(ValueError, match="split_tokens must be at least 1"):
        cpu.decode(*arguments, split_tokens=0)
    call.seq_lens[1] = 65
    with pytest.raises(ValueError, match=r"seq_lens\[1\] is 65; allowed: 0 to 64, 4 columns of 16 tokens"):
        cpu.decode(*arguments)
    call.seq_lens[1] = -1
    with pytest.raises(ValueError, match=r"seq_lens\[1\] is -1"):
        cpu.decode(*arguments)
    call.seq_lens[1] = 40
    call.table[1, 2] = 99
    with pytest.raises(ValueError, match=r"row 1 of block_table names block 99; allowed: 0\.\.5"):
        cpu.decode(*arguments)
    call.table[1, 2] = 0
    for ends, message in (
        ([0, 1, 3], "from 0 to the 2 tokens"),
        ([0, 3, 2], "gives sequence 1 -1 query tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            cpu.prefill(call.q, torch.tensor(ends, dtype=torch.int32), *arguments[1:])
    with pytest.raises(ValueError, match="tensors on cpu, not on meta"):
        cpu.copy_blocks([torch.empty(2, 2, device="meta")], [])


def test_the_environment_can_name_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPROOF_ISA", "mmx")
    call = Call("fp32", 64, 16, 2, 4, [5])
    with pytest.raises(ValueError, match="isa is 'mmx'"):
        cpu.decode(call.q, call.k, call.v, call.table, call.seq_lens, 0.1)


def test_read_reads_everything() -> None:
    assert cpu.read(torch.ones(640), threads=3) == 640

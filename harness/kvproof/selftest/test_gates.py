"""Static gates: the arithmetic on texts written by hand, and planted faults that NVRTC compiles for real."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kvproof_kernels import gates, listed, sass
from kvproof_kernels.gates import CHIPS, Subject, Verdict
from kvproof_kernels.nvrtc import ARCHITECTURES, CompileFailed, NoNvrtc, compile_kernel, version

RESOURCES = """
Resource usage:
 Common:
  GLOBAL:50 CONSTANT[4]:112
 Function _ZN5paged12paged_decodeE:
  REG:72 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:664 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def listing(*lines: str) -> str:
    """Instructions as cuobjdump prints them, 16 bytes each, with their encodings."""
    return "\n".join(
        f"        /*{16 * i:04x}*/    {line} ;    /* 0x000fe20000000f00 */\n    /* 0x003fde0000000f00 */"
        for i, line in enumerate(lines)
    )


FMAS = ["FFMA R1, R2, R3, R1"] * 16
# A prologue; a loop of 20 instructions, 2 of them copies, that leaves at its end; the way of a diverged warp.
STREAM = listing(
    "S2R R0, SR_TID.X",
    "LDGSTS.E.BYPASS.LTC128B.128 [R8+0x800], desc[UR12][R2.64], !P0",
    "BRA.DIV UR17, 0x180",
    "LDGSTS.E.BYPASS.LTC128B.128.ZFILL [R8+0x800], desc[UR12][R2.64], P0",
    *FMAS,
    "@!P0 LDGSTS.E.BYPASS.LTC128B.128 [R9], desc[UR12][R4.64]",
    "@P1 BRA 0x20",
    "EXIT",
    "BRA 0x170",
    "WARPSYNC.COLLECTIVE R24, 0x1b0",
    *FMAS,
    "BRA 0x20",
)


def test_reads_resources_and_opcodes() -> None:
    usage = sass.parse(RESOURCES, STREAM)
    assert (usage.registers, usage.stack, usage.local) == (72, 0, 0)
    assert usage.opcodes["EXIT"] == 1
    assert sass.count(usage.opcodes, "LDGSTS") == 3
    assert sass.count(usage.opcodes, "LDGST") == 0


def test_the_loop_has_no_code_of_diverged_warps() -> None:
    (loop,) = sass.parse(RESOURCES, STREAM).loops
    assert (loop.instructions, loop.copies) == (20, 2)


@pytest.mark.parametrize(
    "lines",
    [
        ["LDGSTS.E.128 [R8], [R2.64]", *FMAS, "EXIT"],
        ["LDGSTS.E.128 [R8], [R2.64]", "FFMA R1, R2, R3, R1", "@P0 BRA 0x0", "EXIT"],
        [*FMAS, "@P0 BRA 0x0", "EXIT"],
    ],
    ids=["no loop", "one product", "no copy"],
)
def test_other_loops_do_not_stream(lines: list[str]) -> None:
    assert sass.parse(RESOURCES, listing(*lines)).loops == ()


def test_the_innermost_loop_counts() -> None:
    inner = ["LDGSTS.E.128 [R8], [R2.64]", *FMAS, "@P0 BRA 0x10"]
    (loop,) = sass.parse(RESOURCES, listing("NOP", *inner, "@P1 BRA 0x0", "EXIT")).loops
    assert loop.instructions == 18


def test_refuses_what_is_no_listing() -> None:
    with pytest.raises(ValueError, match="no REG"):
        sass.parse("cuobjdump fatal: no such file", "")


def test_blocks_an_sm_holds() -> None:
    h200 = CHIPS["sm_90"]
    assert h200.resident(registers=72, threads=128, shared=50 << 10) == 4  # by shared memory: 228 // 51
    assert h200.resident(registers=200, threads=128, shared=0) == 2  # by registers: 65536 // (200 * 128)
    assert h200.resident(registers=193, threads=128, shared=0) == 2  # as many as 200: by units of 8
    assert h200.resident(registers=32, threads=1024, shared=0) == 2  # by warps: 64 // 32
    assert h200.resident(registers=16, threads=32, shared=0) == 32  # by blocks
    assert h200.resident(registers=32, threads=128, shared=228 << 10) == 0
    assert CHIPS["sm_120"].resident(registers=32, threads=128, shared=100 << 10) == 0


def test_littles_law_and_the_issue_rate() -> None:
    h200 = CHIPS["sm_90"]
    assert h200.needed_in_flight == pytest.approx(4.8e12 / 132 * 1e-6)  # 36 KB an SM
    # 4 instructions a cycle on 132 SMs at 1.83 GHz are 966 G a second: at 0.2 a byte, 4.83 TB/s.
    assert h200.issue_rate(0.2) == pytest.approx(1.0065)


SUBJECT = Subject(
    name="decode",
    header="decode.cuh",
    expression="decode",
    threads=128,
    shared=50 << 10,
    copies=True,
    tensor=True,
    in_flight=32 << 10,
    rated=True,
    why="",
)


def usage(instructions: int = 512, copies: int = 8, **other: int) -> sass.Usage:
    """A tensor kernel's, whose loop has so many instructions, with other opcodes beside."""
    opcodes = Counter({"LDGSTS.E.128": copies, "HMMA.16816.F32": 8, "LDSM.16.M88.4": 8, **other})
    loop = sass.Loop(0, instructions, Counter({"LDGSTS.E.128": copies, "IADD3": instructions - copies}))
    return sass.Usage(registers=128, stack=0, local=0, opcodes=opcodes, loops=(loop,))


def test_a_sound_kernel_passes() -> None:
    verdict = gates.judge(SUBJECT, "sm_90", usage())
    assert verdict.problems == ()
    assert verdict.warnings == ()
    assert verdict.blocks == 4
    assert verdict.per_byte == pytest.approx(512 / 4096)
    assert verdict.issue == pytest.approx(966.24e9 / 4.8e12 / 0.125)


@pytest.mark.parametrize(
    ("change", "of", "named"),
    [
        ({}, {"stack": 8}, "8 bytes of stack"),
        ({}, {"local": 16}, "16 of local memory"),
        ({}, {"opcodes": usage(**{"LDL.64": 1, "STL": 2}).opcodes}, "3 accesses to it"),
        ({}, {"opcodes": usage(**{"LDGSTS.E.64": 2}).opcodes}, "2 copies narrower than 16 bytes"),
        ({}, {"opcodes": Counter({"LDGSTS.E.128": 1, "LDSM": 1})}, "no matrix instruction"),
        ({}, {"opcodes": Counter({"LDGSTS.E.128": 1, "HMMA": 1})}, "or no load for one"),
        ({}, {"opcodes": Counter({"HMMA": 1, "LDSM": 1})}, "no asynchronous copy"),
        ({}, {"loops": ()}, "no loop that streams"),
        ({}, {"loops": usage(instructions=1000).loops}, "82% of the memory's rate"),
        ({"in_flight": 13 << 10}, {}, "1.46 of the bytes in flight"),
        ({"shared": 228 << 10}, {}, "a block may have 232448"),
        ({"threads": 1024}, {}, "no block fits"),
    ],
)
def test_each_gate_fails_alone(change: dict[str, int], of: dict[str, object], named: str) -> None:
    verdict = gates.judge(replace(SUBJECT, **change), "sm_90", replace(usage(), **of))  # type: ignore[arg-type]
    assert any(named in problem for problem in verdict.problems), verdict.problems


def test_a_low_issue_rate_warns() -> None:
    verdict = gates.judge(SUBJECT, "sm_90", usage(instructions=700))
    assert verdict.problems == ()
    assert "118%" in verdict.warnings[0]


def test_exempt_kernels_are_not_rated() -> None:
    verdict = gates.judge(replace(SUBJECT, rated=False), "sm_90", usage(instructions=4000))
    assert verdict.problems == verdict.warnings == ()
    assert verdict.issue == pytest.approx(0.206, abs=1e-3)


def test_the_table_tells_drift() -> None:
    verdict = gates.judge(SUBJECT, "sm_90", usage())
    committed = gates.table([verdict], [SUBJECT], "13.5")
    assert gates.drift([replace(verdict, registers=136)], committed) == []
    assert gates.drift([replace(verdict, registers=119)], committed) == [
        "sm_90 decode: 119 registers, committed 128"
    ]
    assert gates.drift([replace(verdict, arch="sm_80")], committed) == [
        "sm_80 decode: not in the committed table"
    ]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_list_is_short_and_each_name_stands_once(arch: str) -> None:
    names = [subject.name for subject in listed.listed(arch)]
    assert len(names) == len(set(names)) <= listed.MOST
    everything = [subject.name for subject in listed.every(arch)]
    assert len(everything) == len(set(everything))
    assert {name for name in names if " no " not in name} <= set(everything)


def test_a_list_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text("[[encode]]\nwhy = ''\n", encoding="utf-8")
    with pytest.raises(ValueError, match="unknown kind encode; known: decode"):
        listed.listed("sm_90", path)
    path.write_text("[[copy_blocks]]\nwhy = ''\n" * 25, encoding="utf-8")
    with pytest.raises(ValueError, match="25 kernels; at most 24"):
        listed.listed("sm_90", path)


# ---- compiled for real ------------------------------------------------------------------------------------

COPY = """
    asm volatile("cp.async.%s.shared.global [%%0], [%%1], %d;" ::
                 "r"((unsigned)__cvta_generic_to_shared(ring + threadIdx.x * 16)), "l"(in + threadIdx.x * 16)
                 : "memory");
"""
KERNEL = """
extern "C" __global__ void kernel(const char* in, float* out, int n) {
    __shared__ __align__(16) char ring[2048];
    %s
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    %s
    out[threadIdx.x] = ((float*)ring)[n];
}
"""
SPILL = "float big[64]; for (int i = 0; i < n; i++) big[i] = out[i]; out[n] = big[out[0] > 0 ? n : 3];"
PLANTED = {
    "sound": (KERNEL % (COPY % ("cg", 16), ""), None),
    "narrow": (KERNEL % (COPY % ("ca", 4), ""), "1 copies narrower than 16 bytes"),
    "stack": (KERNEL % (COPY % ("cg", 16), SPILL), "bytes of stack"),
    "no copy": (KERNEL % ("", ""), "no asynchronous copy"),
}


def compiled(folder: Path, source: str, arch: str) -> Verdict:
    (folder / "kernel.cuh").write_text(source, encoding="utf-8")
    subject = replace(SUBJECT, shared=2048, tensor=False, rated=False, in_flight=0)
    cubin = compile_kernel("kernel.cuh", "kernel", arch, folder)
    return gates.judge(subject, arch, sass.read(cubin.path))


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    try:
        version()
        sass.find_cuobjdump()
    except (NoNvrtc, sass.NoTool) as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_fail_their_gate(toolchain: Path, fault: str, arch: str) -> None:
    source, named = PLANTED[fault]
    problems = compiled(toolchain, source, arch).problems
    if named is None:
        assert problems == ()
    else:
        (problem,) = problems
        assert named in problem


def test_the_cache_knows_source_and_architecture(toolchain: Path) -> None:
    source = toolchain / "kernel.cuh"
    source.write_text(PLANTED["sound"][0], encoding="utf-8")
    first = compile_kernel("kernel.cuh", "kernel", "sm_90", toolchain)
    again = compile_kernel("kernel.cuh", "kernel", "sm_90", toolchain)
    assert (first.fresh, again.fresh) == (True, False)
    assert (first.path, first.symbol) == (again.path, again.symbol)
    assert compile_kernel("kernel.cuh", "kernel", "sm_80", toolchain).path != first.path
    source.write_text(source.read_text(encoding="utf-8") + "\n// edited\n", encoding="utf-8")
    assert compile_kernel("kernel.cuh", "kernel", "sm_90", toolchain).fresh


def test_a_compile_error_shows_the_log(toolchain: Path) -> None:
    with pytest.raises(CompileFailed, match=r"kernel for sm_90: (.|\n)*no_such_name"):
        compiled(toolchain, KERNEL % ("no_such_name();", ""), "sm_90")

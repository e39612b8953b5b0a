"""What a driver is told: the real cuda-core and bindings, over a libcuda that only writes down calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof_kernels.host_build import NoCompiler, compiler
from kvproof_kernels.nvrtc import NoNvrtc, compile_kernel, version

SCRIPT = """
import ctypes, sys
from kvproof_kernels.launch import Call, Launch, LaunchFailed, gpu

class Params(ctypes.Structure):
    _fields_ = (("a", ctypes.c_longlong), ("b", ctypes.c_int), ("c", ctypes.c_int))

def call(*launches):
    return Call(launches, Params(0x1122334455667788, 7, 9), "", "")

device = gpu(1)
print(device.arch, device.sms, flush=True)
small, large = (Launch("cache.cuh", sys.argv[1], (3, 2, 1), 128, shared) for shared in (0, 60000))
try:
    device.start(call(large), 77, True)
except LaunchFailed as failed:
    print(failed, flush=True)
device.start(call(large, small), 77, False)
device.start(call(small), 0, True)
device.start(call(Launch("cache.cuh", sys.argv[1], (0, 1, 1), 128)), 0, False)
try:
    device.start(call(Launch("cache.cuh", sys.argv[1], (1, 1, 1), 2048)), 0, False)
except LaunchFailed as failed:
    print(failed, flush=True)
"""
LAUNCHED = (
    "launch 3,2,1 128,1,1 shared {} stream {} context 1001 "
    "params 88 77 66 55 44 33 22 11 07 00 00 00 09 00 00 00"
)


EXPRESSION = "paged::paged_write<float, float>"


def run_with(folder: Path, cuda: int, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the script over a stand-in for the driver of this CUDA version, 13000 for 13.0."""
    try:
        version()
        gcc = compiler().replace("clang++", "clang").replace("g++", "gcc")
    except (NoNvrtc, NoCompiler) as missing:
        pytest.skip(str(missing))
    if sys.platform != "linux" or shutil.which("nvidia-smi"):
        pytest.skip("a stand-in for libcuda needs Linux and no real one")
    fake = folder / "libcuda.so.1"
    flags = ["-x", "c", "-shared", "-fPIC", "-w", f"-Wl,-soname,{fake.name}"]
    source = Path(__file__).parent / "fake_cuda.c"
    subprocess.run([gcc, *flags, "-o", fake, source, "-ldl"], check=True)
    libraries = os.pathsep.join([str(folder), *os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)])
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "FAKE_CUDA": str(cuda), **more}
    command = [sys.executable, "-c", SCRIPT, EXPRESSION]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_the_driver_is_told(tmp_path: Path) -> None:
    try:
        symbol = compile_kernel("cache.cuh", EXPRESSION, "sm_90").symbol  # NVRTC trips over the stand-in
    except NoNvrtc as missing:
        pytest.skip(str(missing))
    done = run_with(tmp_path, 13000)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "sm_90 132",
        f"{EXPRESSION} is not loaded yet, which a graph capture does not allow: run the same call once "
        "before the capture",
        "load ELF",
        f"kernel {symbol}",
        "attribute 8 60000 device 1",
        LAUNCHED.format(60000, 77),
        LAUNCHED.format(0, 77),
        LAUNCHED.format(0, 0),
        f"{EXPRESSION}: CUDA_ERROR_INVALID_VALUE",
    ]


def test_a_struct_of_another_size_is_not_handed_over(tmp_path: Path) -> None:
    try:
        compile_kernel("cache.cuh", EXPRESSION, "sm_90")
    except NoNvrtc as missing:
        pytest.skip(str(missing))
    done = run_with(tmp_path, 13000, FAKE_BYTES="24")
    assert f"{EXPRESSION} takes 24 bytes of parameters, Params has 16" in done.stderr
    assert "launch" not in done.stdout


def test_an_old_driver_is_named(tmp_path: Path) -> None:
    done = run_with(tmp_path, 12040, PATH="")  # nor is nvcc found
    assert "the driver serves 12.4: update it" in done.stderr
    assert "Nor is there the other route: nvcc is not on the path" in done.stderr

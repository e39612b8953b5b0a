"""The machine and versions that a number belongs to."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import psutil

import kvproof
from kvproof.records import Environment

PACKAGES = ("numpy", "pandas", "psutil", "pydantic", "pytest", "pytest-benchmark", "torch")
COMPILERS = ("c++", "g++", "clang++")
COPIED = 64 << 20
"""Bytes that are copied to measure the memory: more than caches hold."""
BUSY_S = 0.5
"""For so long it is watched what others do."""


def describe(bench: bool = False) -> Environment:
    """This machine, this Python, the packages that matter, and the commit of a checkout.

    bench: measure the bandwidth of the memory too, and how busy others are, which takes under a second.
    """
    cores = os.cpu_count() or 1
    busy_cores = _busy_cores(cores) if bench else None  # before anything here is at work
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    missing = {}
    if importlib.util.find_spec("torch") is None:
        missing["torch"] = "kernel profile and rank processes"
    if shutil.which("nvidia-smi") is None:
        missing["NVIDIA GPU"] = "kernels on a device"
    if not any(map(shutil.which, COMPILERS)):
        missing["C++ compiler"] = "kernels on the CPU"
    here = str(Path(__file__).parent)
    commit = _said(["git", "-C", here, "rev-parse", "HEAD"])  # None in an installed package
    return Environment(
        kvproof=kvproof.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        cores=cores,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        packages=found,
        missing=missing,
        commit=commit,
        dirty=None if commit is None else bool(_said(["git", "-C", here, "status", "--porcelain"])),
        gpu=_said(["nvidia-smi", "-i", "0", "--query-gpu=name,driver_version", "--format=csv,noheader"]),
        cpu_mhz=_cpu_mhz(),
        compiler=next((said for c in COMPILERS if (said := _said([c, "--version"]))), None),
        copy_gbps=_copy_gbps() if bench else None,
        busy_cores=busy_cores,
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_mhz() -> float | None:
    try:
        found = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):  # AttributeError: this platform has none
        return None
    return round(found.current, 0) if found and found.current else None


def _busy_cores(cores: int) -> float | None:
    try:
        percent: float = psutil.cpu_percent(BUSY_S)
    except (OSError, NotImplementedError):
        return None
    return round(percent / 100 * cores, 2)


def _copy_gbps() -> float:
    """The best of seven copies: whatever else runs only ever makes one slower."""
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return round(2 * COPIED / best / 1e9, 1)


def _said(command: list[str]) -> str | None:
    """The first line that a program writes; None if it is not here, fails, or says nothing."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next(iter(done.stdout.strip().splitlines()), None) if done.returncode == 0 else None

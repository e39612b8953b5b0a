"""The machine and versions that a number belongs to."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

import kvproof
from kvproof.records import Environment

PACKAGES = ("numpy", "pandas", "psutil", "pydantic", "pytest", "pytest-benchmark", "torch")


def describe() -> Environment:
    """This machine, this Python, the packages that matter, and the commit of a checkout."""
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
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        missing["C++ compiler"] = "kernels on the CPU"
    return Environment(
        kvproof=kvproof.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        packages=found,
        missing=missing,
        commit=_commit(),
        gpu=_gpu(),
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _gpu() -> str | None:
    """As nvidia-smi tells it; None without one."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "-i", "0", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _commit() -> str | None:
    """Of the checkout that holds this file; None in an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None

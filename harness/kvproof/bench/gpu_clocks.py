"""Clocks, power and throttling of the GPU that is measured: read by NVML, else by nvidia-smi, else said.

The device is found by its UUID: the first of this process is not always the first of the machine.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvproof.stats import median

REASONS = {0x08: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown"}
REASONS |= {0x80: "power brake"}
"""Bits of NVML's clocks event reasons under which no time counts. A power cap alone (0x04) is judged by the
clock it leaves: memory-bound kernels often run under one without losing anything."""
LEAST_CLOCK = 0.75
"""Of the highest SM clock; below it a time does not count (the rule of NVBench)."""
DRIFT = 0.05
"""The SM clock of the first and the second half of the rounds may differ by so much."""
SMI_S = 1.0
"""nvidia-smi is a process: it is asked once in this time at most; the rounds within share what it said."""
FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "clocks.max.sm")
ACTIVE = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The new name of the field, and the one of drivers before 535."""


@dataclass(frozen=True)
class Reading:
    """Clocks in MHz and power in W at one moment; reasons: NVML's bits."""

    sm_mhz: float
    memory_mhz: float
    watts: float
    most_mhz: float
    reasons: int

    @property
    def throttled(self) -> str:
        """Why a time taken now does not count; "" where it does."""
        named = [name for bit, name in REASONS.items() if self.reasons & bit]
        if not named and self.sm_mhz < LEAST_CLOCK * self.most_mhz:
            named = [f"SM clock {self.sm_mhz:.0f} of {self.most_mhz:.0f} MHz"]
        return ", ".join(named)


@dataclass
class Clocks:
    """read answers None where nothing can be read; absent says why."""

    source: str
    read: Callable[[], Reading | None]
    absent: str = ""


def opened(device: str) -> Clocks:
    """The clocks of torch's current device by the first way that works here; a CPU has none to read."""
    if device != "cuda":
        return Clocks("", lambda: None)
    said = []
    for name, way in (("NVML", _by_nvml), ("nvidia-smi", _by_smi)):
        try:
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
            read = way(uuid)
            read()
            return Clocks(name, _careful(read))
        except Exception as e:
            said.append(f"{name}: {type(e).__name__}: {e}".strip())
    return Clocks("", lambda: None, "; ".join(said))


def _careful(read: Callable[[], Reading]) -> Callable[[], Reading | None]:
    """The same, with None for a reading that fails in the middle of a run."""

    def careful() -> Reading | None:
        try:
            return read()
        except Exception:
            return None

    return careful


def _by_nvml(uuid: str) -> Callable[[], Reading]:
    nvml: Any = importlib.import_module("pynvml")  # of the distribution nvidia-ml-py
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def read() -> Reading:
        return Reading(
            float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            float(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            int(reasons(handle)),
        )

    return read


def _by_smi(uuid: str, now: Callable[[], float] = time.monotonic) -> Callable[[], Reading]:
    program = shutil.which("nvidia-smi")
    if program is None:
        raise FileNotFoundError("not installed")

    def ask(active: str) -> Reading:
        query = f"--query-gpu={','.join((*FIELDS, active))}"
        command = [program, "-i", uuid, query, "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        sm, memory, watts, most, bits = (part.strip() for part in done.stdout.split(","))
        return Reading(float(sm), float(memory), float(watts), float(most), int(bits, 16))

    try:
        ask(ACTIVE[0])
        active = ACTIVE[0]
    except (ValueError, subprocess.CalledProcessError):
        active = ACTIVE[1]
    last: list[Any] = [-SMI_S, None]

    def read() -> Reading:
        if last[1] is None or now() - last[0] >= SMI_S:
            last[:] = now(), ask(active)
        reading: Reading = last[1]
        return reading

    return read


def drifted(kept: Sequence[Reading]) -> str:
    """Why the rounds of these readings, in their order, are void; "" where they are not."""
    if len(kept) < 2:
        return ""
    half = len(kept) // 2
    first, second = (median([r.sm_mhz for r in part]) for part in (kept[:half], kept[half:]))
    if abs(first - second) > DRIFT * max(first, second):
        return f"the SM clock went from {first:.0f} to {second:.0f} MHz over the rounds"
    memory = {r.memory_mhz for r in kept}
    if max(memory) - min(memory) > DRIFT * max(memory):
        return f"the memory clock was between {min(memory):.0f} and {max(memory):.0f} MHz"
    return ""


def counters(kept: Sequence[Reading]) -> dict[str, float]:
    """Medians over the rounds that count, for the record of a sample; empty without readings."""
    names = ("sm_mhz", "memory_mhz", "watts")
    return {n: median([float(getattr(r, n)) for r in kept]) for n in names} if kept else {}

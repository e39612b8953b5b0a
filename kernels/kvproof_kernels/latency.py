"""Cycles of one dependent load from shared memory, from L2 and from global memory (chapter 3.2.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvproof_kernels.nvrtc import compile_kernel

SOURCE = Path(__file__).parent / "probe"
STEPS = 4096
TABLE = 12_288
"""Entries of 4 bytes: the chapter's 48 KB."""
FAR = 1 << 28
"""Entries of a chain that no cache holds: 1 GiB."""
LINE = 32
"""Entries of one line of 128 bytes; a far chain touches each once."""


def expression(shared: bool) -> str:
    """Name of the kernel in C++, for `compile_kernel`."""
    return f"probe::chain<{'true' if shared else 'false'}>"


def measure() -> dict[str, float]:
    """Cycles of a load by where it is answered: "shared", "L2", "global".

    Raises:
        nvrtc.NoNvrtc, nvrtc.CompileFailed: as compile_kernel. Anything of cuda.core without a GPU.
    """
    import torch

    near = _chain(torch.randperm(TABLE, device="cuda"), 1)
    found = {"shared": _cycles(near, True), "L2": _cycles(near, False)}
    far = _chain(torch.randperm(FAR // LINE, device="cuda"), LINE)
    return {**found, "global": _cycles(far, False)}


def _chain(order: Any, stride: int) -> Any:
    """int32 on the device: entry i, a multiple of `stride`, holds the one that follows it in the cycle."""
    import torch

    chain = torch.zeros(len(order) * stride, dtype=torch.int32, device="cuda")
    chain[order * stride] = (order.roll(-1) * stride).to(torch.int32)
    return chain


def _cycles(chain: Any, shared: bool) -> float:
    import numpy as np
    import torch
    from cuda.core import Device, LaunchConfig, ObjectCode, launch

    device = Device(0)
    device.set_current()
    cubin = compile_kernel("latency.cuh", expression(shared), f"sm_{device.arch}", SOURCE)
    kernel = ObjectCode.from_cubin(cubin.path.read_bytes()).get_kernel(cubin.symbol)
    cycles = torch.zeros(1, dtype=torch.int64, device="cuda")
    last = torch.zeros(1, dtype=torch.int32, device="cuda")
    entries = len(chain) if shared else 0
    config = LaunchConfig(grid=1, block=1, shmem_size=4 * entries)
    stream = device.create_stream()
    torch.cuda.synchronize()
    for _ in range(1 if chain.numel() == FAR else 2):  # a near one is warm the second time
        launch(
            stream,
            config,
            kernel,
            chain.data_ptr(),
            np.int32(entries),
            np.int32(STEPS),
            cycles.data_ptr(),
            last.data_ptr(),
        )
    stream.sync()
    return float(cycles.item()) / STEPS

"""What a kernel frees is used again by its next step, and goes back between groups."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="kernels need torch")
if platform.libc_ver()[0] != "glibc":
    pytest.skip("not here: glibc, whose allocator is told to keep memory", allow_module_level=True)

STEPS = """
import json
from resource import RUSAGE_SELF, getrusage

import psutil
import torch

from kvproof.bench import attention, roofline
from kvproof.bench.attention import AttentionJob, Group
from kvproof.bench.kernels import KernelSubject
from kvproof.bench.matrix import Point
from kvproof.claims.measured import _timed
from kvproof.selftest import kernel_standin

roofline.PROBE_BYTES = 1 << 20
STEP = {"tokens": 300, "dtype": "fp32", "batch": 2, "heads": "4/2", "head_dim": 16}
some = Group("attention", (Point("attention", {**STEP, "block_size": 16, "topology": "identity"}),))
kernel, faults = kernel_standin.make(), []
inner = kernel.decode


def greedy(*arguments):
    before = getrusage(RUSAGE_SELF).ru_minflt
    torch.empty(COPY).fill_(1.0)
    faults.append(getrusage(RUSAGE_SELF).ru_minflt - before)
    return inner(*arguments)


COPY = 64 << 20
kernel.decode = greedy
AttentionJob([KernelSubject("greedy", kernel)], [some], 0.01, lambda _: None).measure(some, _timed)
kept = psutil.Process().memory_info().rss
attention._free("cpu")
print(json.dumps({"faults": faults, "given_back": kept - psutil.Process().memory_info().rss}))
"""


def test_a_copy_of_each_step_is_mapped_once() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    first, *_, last = found["faults"]
    assert len(found["faults"]) >= 5
    assert 4 * last < first, "256 MiB are mapped in the first step, and kept"
    assert found["given_back"] > 200 << 20

"""What a kernel frees is used again by its next step, and goes back between groups."""

from __future__ import annotations

import json
import platform
import resource
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

from kvproof.bench import attention, heap, roofline
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


def copied(size):
    before = getrusage(RUSAGE_SELF).ru_minflt
    torch.empty(size, dtype=torch.uint8).fill_(1)
    return getrusage(RUSAGE_SELF).ru_minflt - before


def greedy(*arguments):
    faults.append(copied(256 << 20))
    return inner(*arguments)


kernel.decode = greedy
AttentionJob([KernelSubject("greedy", kernel)], [some], 0.01, lambda _: None).measure(some, _timed)
kept = psutil.Process().memory_info().rss
attention._free("cpu")
left = psutil.Process().memory_info().rss
heap.keep_freed(256 << 20)
print(json.dumps({"faults": faults, "given_back": kept - left, "ahead": copied(192 << 20)}))
"""


def test_the_copies_of_all_steps_are_mapped_once() -> None:
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    pages = (256 << 20) // resource.getpagesize()
    assert len(found["faults"]) >= 5
    assert 4 * max(found["faults"]) < pages, "all steps find what was mapped ahead, and keep it"
    assert found["given_back"] > 200 << 20
    assert 4 * found["ahead"] < pages

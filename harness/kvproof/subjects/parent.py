"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
import sys


def die_with_parent() -> None:
    """A parent that is killed cannot stop a worker that hangs in a call: on Linux the kernel does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

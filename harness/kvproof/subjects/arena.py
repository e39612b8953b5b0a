"""Memory with an end: tensors that lie against a page nobody may touch, with marks beside them.

On the CPU a read or write past a tensor's guarded side ends the process, and a write on its other side
is seen in the marks. On a device there are marks on both sides.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

MARK = 0xA5
DEVICE_MARGIN = 4096
"""Bytes of marks on each side of a tensor on a device."""
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class NoRoom(Exception):
    """The address space of this machine does not hold the pool."""


class Placed:
    """One tensor with marks, and on the CPU a forbidden page, beside it."""

    def __init__(self, name: str, nbytes: int, side: str, device: str) -> None:
        import torch

        self.name = name
        if device != "cpu":
            self.whole = torch.full((nbytes + 2 * DEVICE_MARGIN,), MARK, dtype=torch.uint8, device=device)
            self.marks = [self.whole[:DEVICE_MARGIN], self.whole[DEVICE_MARGIN + nbytes :]]
            self.bytes = self.whole[DEVICE_MARGIN : DEVICE_MARGIN + nbytes]
            return
        page = mmap.PAGESIZE
        room = (-(-nbytes // page) + 1) * page  # a page of marks at least
        memory = np.frombuffer(_mapped(room + 2 * page), np.uint8)
        _forbid(memory, 0, page)
        _forbid(memory, page + room, page)
        start = page + (room - nbytes if side == "after" else 0)
        beside = memory[page:start] if side == "after" else memory[start + nbytes : page + room]
        beside[:] = MARK
        self.whole = torch.from_numpy(memory)
        self.marks = [torch.from_numpy(beside)]
        self.bytes = torch.from_numpy(memory[start : start + nbytes])

    def tensor(self, dtype: Any, shape: Sequence[int]) -> Any:
        """The memory as a tensor."""
        return self.bytes.view(dtype).view(tuple(shape))

    def digest(self) -> int:
        """A checksum of the tensor: whether it was written is all that is asked."""
        return zlib.crc32(self.bytes.cpu().numpy().data)

    def torn(self) -> bool:
        """A mark beside the tensor was overwritten."""
        return any(bool((mark != MARK).any()) for mark in self.marks)


def _mapped(nbytes: int) -> mmap.mmap:
    """Zero bytes that cost memory where they are touched only.

    Raises:
        NoRoom: there is not so much address space.
    """
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, nbytes)
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    except (OSError, ValueError, OverflowError) as error:
        raise NoRoom(f"no address space for {nbytes / 2**30:.1f} GiB: {error}") from None


def _forbid(memory: np.ndarray[Any, np.dtype[np.uint8]], offset: int, nbytes: int) -> None:
    """Make a page inaccessible, where the system has a way to."""
    if sys.platform != "win32":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect(
            ctypes.c_void_p(memory.ctypes.data + offset),
            ctypes.c_size_t(nbytes),
            mmap.PROT_NONE if hasattr(mmap, "PROT_NONE") else 0,
        )

"""Case files of the shim: the memory of one kernel call, for simt/run_case.cpp.

Every buffer lies between red zones, and every byte has a say: live ranges may be read, writable ones also
written; AddressSanitizer stops a kernel that touches any other, and no other may have changed afterwards.
Nothing is copied for a pool of more than SPARSE bytes but its live rows: the rest is a hole in the file.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MARK = int.from_bytes(b"kv-case1", "little")
HEADER_BYTES = 64
ALIGNMENT = 256  # what GPU allocators give
ZONE_BYTES = 256
ZONE = b"\xa5"
SPARSE = 256 << 20

Ranges = npt.NDArray[np.int64]  # [n, 2], first byte and number of bytes, ascending and apart


def merge(starts: npt.NDArray[np.int64], size: int) -> Ranges:
    """Ranges that cover `size` bytes from each of `starts`, which may repeat but not overlap in part."""
    at = np.unique(starts)
    first = np.flatnonzero(np.diff(at, prepend=at[:1] - size - 1) != size)
    lengths = np.diff(np.append(first, len(at))) * size
    return np.stack([at[first], lengths], axis=1)


def memory_of(tensor: Any) -> npt.NDArray[np.uint8]:
    """The bytes from a CPU tensor's first element to its last, whatever its strides; shares its memory."""
    import torch

    if not tensor.numel():
        return np.zeros(0, np.uint8)
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat: npt.NDArray[np.uint8] = tensor.as_strided((span,), (1,)).view(torch.uint8).numpy()
    return flat


def _pointers(struct: ctypes.Structure) -> Iterator[int]:
    """Where in a struct, and in the arrays of structs in it, there are pointers that are not null."""
    for field in struct._fields_:
        value, offset = getattr(struct, field[0]), getattr(type(struct), field[0]).offset
        if isinstance(value, ctypes.Array):
            for i, one in enumerate(value):
                yield from (offset + i * ctypes.sizeof(one) + inner for inner in _pointers(one))
        elif field[1] is ctypes.c_void_p and value:
            yield offset


@dataclass
class Buffer:
    name: str
    place: int
    size: int
    data: npt.NDArray[np.uint8] | None
    live: Ranges
    writable: bool


class Case:
    """The memory of one call, laid out as it is filled. Places are bytes from the start of the file."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.pointers: list[int] = []
        self.end = HEADER_BYTES

    def add(
        self, name: str, data: npt.NDArray[Any], live: Ranges | None = None, writable: bool = False
    ) -> int:
        """Place a buffer with these bytes; `live` defaults to all of it. Returns its place."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return self._place(name, flat.size, flat, live, writable)

    def output(self, name: str, size: int) -> int:
        """Place a writable buffer of `size` bytes that holds NaN in every float format."""
        return self._place(name, size, None, None, True)

    def parameters(self, struct: ctypes.Structure) -> int:
        """Place a kernel's parameters, whose pointers hold places; a null pointer stays one."""
        place = self.add("parameters", np.frombuffer(bytes(struct), np.uint8))
        self.pointers += [place + offset for offset in _pointers(struct)]
        return place

    def _place(
        self, name: str, size: int, data: npt.NDArray[np.uint8] | None, live: Ranges | None, writable: bool
    ) -> int:
        place = -(-(self.end + ZONE_BYTES) // ALIGNMENT) * ALIGNMENT
        whole = np.array([[0, size]], np.int64)[: size > 0]
        self.buffers.append(Buffer(name, place, size, data, whole if live is None else live, writable))
        self.end = place + size
        return place

    def write(self, path: Path, parameters: int, seed: int) -> None:
        tables = -(-(self.end + ZONE_BYTES) // ALIGNMENT) * ALIGNMENT
        sparse = tables > SPARSE
        rows = []
        for b in self.buffers:
            writable = np.full(len(b.live), b.writable, np.int64)
            rows.append(np.column_stack([b.live[:, 0] + b.place, b.live[:, 1], writable]))
        ranges = np.concatenate(rows)
        counts = [len(self.pointers), len(self.buffers), len(ranges)]
        header = [MARK, seed, parameters, sparse, tables, *counts]
        with path.open("wb") as file:
            file.write(np.array(header, np.int64).tobytes())
            end = HEADER_BYTES
            for b in self.buffers:
                file.write(ZONE * (b.place - end))
                if b.data is None:
                    file.write(b"\xff" * b.size)
                elif b.size <= SPARSE:
                    file.write(b.data.data)
                else:
                    for first, size in b.live.tolist():
                        file.seek(b.place + first)
                        file.write(b.data[first : first + size].data)
                    file.seek(b.place + b.size)
                end = b.place + b.size
            file.write(ZONE * (tables - end))
            file.write(np.array(self.pointers, np.int64).tobytes())
            for b in self.buffers:
                file.write(np.array([b.place, b.size], np.int64).tobytes())
                file.write(b.name.encode()[:16].ljust(16, b"\0"))
            file.write(ranges.tobytes())

    def read(self, path: Path, name: str) -> bytearray:
        """What a buffer holds after the run."""
        (b,) = (b for b in self.buffers if b.name == name)
        with path.open("rb") as file:
            file.seek(b.place)
            return bytearray(file.read(b.size))

    def take_back(self, path: Path) -> None:
        """Copy what the kernel wrote into the memory that the writable buffers were filled from."""
        with path.open("rb") as file:
            for b in self.buffers:
                if not b.writable or b.data is None:
                    continue
                for first, size in b.live.tolist():
                    file.seek(b.place + first)
                    b.data[first : first + size] = np.frombuffer(file.read(size), np.uint8)

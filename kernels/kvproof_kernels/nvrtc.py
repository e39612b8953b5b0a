"""Compile one kernel to a cubin with NVRTC: no GPU, no driver and no CUDA toolkit needed.

The pip packages cuda-core, cuda-bindings and nvidia-cuda-nvrtc are enough. Cubins are cached on disk,
so a kernel is compiled once for each architecture and version of its source.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvproof_kernels.host_build import cache_folder

SOURCES = Path(__file__).parent / "cuda"
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
STANDARD = "c++17"


class NoNvrtc(RuntimeError):
    """The packages that compile for GPUs are not installed."""


class CompileFailed(RuntimeError):
    """NVRTC refused the source or the options; the message is its log."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: its file, its mangled name, and whether it was compiled just now."""

    path: Path
    symbol: str
    fresh: bool


@functools.cache
def version() -> str:
    """The version of NVRTC, such as "13.5"."""
    try:
        from cuda.bindings import nvrtc
        from cuda.core import Program  # noqa: F401  (asked for here so that its absence is named early)
    except ImportError as missing:
        raise NoNvrtc(
            f"{missing.name} is not installed; `pip install kvproof[compile]` brings what compiles for GPUs"
        ) from missing
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError as missing:
        raise NoNvrtc(f"the NVRTC library was not found: {missing}") from missing
    return f"{major}.{minor}"


def source_digest(folder: Path) -> bytes:
    """A digest of all CUDA source in `folder`: headers include one another."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in {".cu", ".cuh", ".h"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.digest()


def compile_kernel(header: str, expression: str, arch: str, folder: Path = SOURCES) -> Cubin:
    """The cubin of one kernel, from the cache or compiled now.

    Args:
        header: the file in `folder` that defines it, such as "decode.cuh".
        expression: its name in C++ with template arguments, such as "paged::combine<paged::bf16, 128>".
        arch: such as "sm_90"; see ARCHITECTURES.

    Raises:
        NoNvrtc: a package is missing.
        CompileFailed: with the compiler's log.
    """
    said = "\0".join([header, expression, arch, version(), STANDARD]).encode()
    key = hashlib.sha256(said + source_digest(folder)).hexdigest()[:32]
    cubin = cache_folder() / "cubin" / f"{key}.cubin"
    about = cubin.with_suffix(".json")
    if cubin.is_file() and about.is_file():
        return Cubin(cubin, json.loads(about.read_text(encoding="utf-8"))["symbol"], fresh=False)
    code, symbol = _nvrtc(header, expression, arch, folder)
    cubin.parent.mkdir(parents=True, exist_ok=True)
    _write(cubin, code)
    entry = {"symbol": symbol, "kernel": expression, "header": header, "arch": arch, "nvrtc": version()}
    _write(about, json.dumps(entry, indent=1).encode())  # last: an entry is whole when this is there
    return Cubin(cubin, symbol, fresh=True)


def _nvrtc(header: str, expression: str, arch: str, folder: Path) -> tuple[bytes, str]:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(std=STANDARD, arch=arch, include_path=[str(folder)])
    program = Program(f'#include "{header}"\n', "c++", options)
    try:
        built = program.compile("cubin", name_expressions=(expression,))
    except Exception as failed:  # its class, NVRTCError, is private
        raise CompileFailed(f"{expression} for {arch}: {failed}") from failed
    finally:
        program.close()
    code, symbol = built.code, built.symbol_mapping[expression]
    if not isinstance(code, bytes):
        raise CompileFailed(f"{expression} for {arch}: NVRTC gave no code")
    return code, symbol.decode() if isinstance(symbol, bytes) else symbol


def _write(path: Path, content: bytes) -> None:
    """Write whole or not at all, safe beside other processes that write the same."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(name, path)

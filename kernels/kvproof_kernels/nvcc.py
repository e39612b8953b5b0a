"""The second route: the same source compiled by nvcc behind the C ABI of entry*.cu.

For machines that have a CUDA toolkit and not the pip packages, and to see that two compilers accept the
source. The library links the CUDA runtime statically, so it loads without a driver.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kvproof_kernels.host_build import cache_folder
from kvproof_kernels.nvrtc import SOURCES, STANDARD, CompileFailed, source_digest

FLAGS = {
    "cubin": ("-cubin",),
    "so": ("-shared", "-cudart", "static", "-Xcompiler", "-fPIC"),
}


class NoNvcc(RuntimeError):
    """There is no nvcc on the path."""


@functools.cache
def version() -> str:
    """The release of nvcc, such as "13.0".

    Raises:
        NoNvcc: it is not on the path.
    """
    if not shutil.which("nvcc"):
        raise NoNvcc("nvcc is not on the path; it comes with a CUDA toolkit")
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split("release ")[1].split(",")[0]


def build(
    entry: str,
    arch: str,
    defines: Mapping[str, str | int] | None = None,
    kind: Literal["cubin", "so"] = "so",
    folder: Path = SOURCES,
) -> Path:
    """Compile `entry` (such as "entry.cu") for `arch`, from the cache or now.

    Args:
        defines: macros that choose the instantiation, name to value.
        kind: "so", a library with the C entry points, or "cubin", device code alone.

    Raises:
        NoNvcc: there is no nvcc.
        CompileFailed: with its message.
    """
    # Macros come from a file, since nvcc splits -D at the commas of template arguments.
    macros = "".join(f"#define {name} {value}\n" for name, value in (defines or {}).items())
    source = f'{macros}#include "{entry}"\n'
    flags = [f"-std={STANDARD}", "-O3", f"-arch={arch}", *FLAGS[kind]]
    said = "\0".join([source, version(), *flags]).encode()
    key = hashlib.sha256(said + source_digest(folder)).hexdigest()[:32]
    built = cache_folder() / "nvcc" / f"{key}.{kind}"
    if built.is_file():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        main, new = Path(scratch) / "main.cu", Path(scratch) / built.name
        main.write_text(source, encoding="utf-8")
        command = ["nvcc", *flags, "-I", str(folder), "-o", str(new), str(main)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompileFailed(f"nvcc, {entry} for {arch}: {done.stderr.strip() or done.stdout.strip()}")
        os.replace(new, built)
    return built

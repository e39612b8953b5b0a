"""C++ compiled for this machine at first use, and kept on disk.

The name of a built file holds a hash of all that went into it: sources, the headers beside them and in the
include folders, flags, macros, the compiler's version. So an edit or another compiler builds anew, and
whoever finds the file may use it.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

COMPILERS = ("g++", "clang++")
HEADERS = {".h", ".hpp", ".inl", ".cuh"}


class NoCompiler(RuntimeError):
    """No C++ compiler on the path."""


class BuildFailed(RuntimeError):
    """The compiler refused the sources; the message is the compiler's."""


def compiler() -> str:
    """Path of the C++ compiler: $CXX if it is set, else g++ or clang++.

    Raises:
        NoCompiler: none of them is on the path.
    """
    names = (os.environ["CXX"],) if os.environ.get("CXX") else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise NoCompiler(f"no C++ compiler: {' and '.join(names)} not found on PATH")


@functools.cache
def compiler_version(path: str) -> str:
    """What the compiler says of itself: name, version, target."""
    said = [
        subprocess.run([path, flag], capture_output=True, text=True) for flag in ("--version", "-dumpmachine")
    ]
    return "\n".join(answer.stdout for answer in said)


def cache_folder() -> Path:
    """Where built files are kept: $KVPROOF_CACHE, else kvproof in $XDG_CACHE_HOME, else ~/.cache/kvproof.

    A folder of the process's own where that one cannot be written: then nothing is kept.
    """
    if os.environ.get("KVPROOF_CACHE"):
        return Path(os.environ["KVPROOF_CACHE"])
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "kvproof"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return _of_this_process()
    return folder if os.access(folder, os.W_OK) else _of_this_process()


@functools.cache
def _of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kvproof-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def build(
    sources: Sequence[Path],
    flags: Sequence[str] = (),
    kind: Literal["so", "exe"] = "so",
    defines: Mapping[str, str | int] | None = None,
) -> Path:
    """Compile and link `sources` into a shared library or a program, unless it is there already.

    Args:
        sources: C++ files; the headers in their folders, and in those of -I flags, count as inputs.
        flags: for compiler and linker, in order. -std=c++17 comes first and can be overridden.
        kind: "so" adds -shared -fPIC; "exe" is a program.
        defines: macros, name to value.

    Returns:
        The built file. Processes that ask for the same at once compile it once.

    Raises:
        NoCompiler: there is no compiler.
        BuildFailed: with the command and the compiler's message.
    """
    if not sources:
        raise ValueError("build needs at least one source")
    path = compiler()
    macros = [f"-D{name}={value}" for name, value in (defines or {}).items()]
    options = ["-std=c++17", *(["-shared", "-fPIC"] if kind == "so" else []), *flags, *macros]
    target = (
        cache_folder() / f"{sources[0].stem}-{_key(sources, options, path)}{'.so' if kind == 'so' else ''}"
    )
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f"{target.name}.lock")):
        if not target.is_file():
            _compile([path, *options, *map(str, sources)], target)
    return target


def _key(sources: Sequence[Path], options: Sequence[str], path: str) -> str:
    folders = {source.resolve().parent for source in sources}
    folders |= {Path(option[2:]).resolve() for option in options if option.startswith("-I")}
    headers = [
        file for folder in folders if folder.is_dir() for file in folder.iterdir() if file.suffix in HEADERS
    ]
    digest = hashlib.sha256()
    # Folders do not count, so that the same sources unpacked elsewhere are the same build.
    said = [option for option in options if not option.startswith("-I")]
    for text in (platform.machine(), compiler_version(path), *said):
        digest.update(text.encode() + b"\0")
    for file in [*sources, *sorted(headers, key=lambda file: (file.name, file.as_posix()))]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _compile(command: list[str], target: Path) -> None:
    # Written beside the target and renamed: nobody ever sees half a file.
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f"{target.name}.")
    os.close(handle)
    try:
        done = subprocess.run([*command, "-o", name], capture_output=True, text=True)
        if done.returncode:
            raise BuildFailed(
                f"{' '.join(command)}\n{done.stderr.strip() or f'exit status {done.returncode}'}"
            )
        # mkstemp made it private; another user of a shared cache may run it.
        os.chmod(name, 0o755)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield  # two builds at once do the work twice, and the last rename stays
        return
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Builds are made once, made anew when anything that went into them changes, and fail with a reason."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof_kernels import host_build

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")),
    reason="no C++ compiler: g++ and clang++ not found on PATH",
)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "value.h").write_text("#define VALUE 40\n", encoding="utf-8")
    file = folder / "answer.cpp"
    function = 'extern "C" int answer() { return VALUE + MORE; }'
    text = f'#include "value.h"\n{function}\nint main() {{ return answer(); }}\n'
    file.write_text(text, encoding="utf-8")
    return file


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


@needs_compiler
def test_a_library_is_built_once(source: Path) -> None:
    first = host_build.build([source], defines={"MORE": 2})
    made = first.stat().st_mtime_ns
    assert answer(first) == 42
    assert host_build.build([source], defines={"MORE": 2}) == first
    assert first.stat().st_mtime_ns == made


@needs_compiler
def test_what_went_in_decides_the_name(source: Path) -> None:
    builds = [host_build.build([source], defines={"MORE": 2})]
    builds.append(host_build.build([source], defines={"MORE": 3}))
    builds.append(host_build.build([source], ["-O2"], defines={"MORE": 2}))
    (source.parent / "value.h").write_text("#define VALUE 50\n", encoding="utf-8")
    builds.append(host_build.build([source], defines={"MORE": 2}))
    assert [answer(library) for library in builds] == [42, 43, 42, 52]
    assert len(set(builds)) == 4


@needs_compiler
def test_the_same_sources_elsewhere_are_the_same_build(source: Path, tmp_path: Path) -> None:
    other = shutil.copytree(source.parent, tmp_path / "elsewhere")
    first = host_build.build([source], defines={"MORE": 2})
    assert host_build.build([other / source.name], defines={"MORE": 2}) == first


@needs_compiler
def test_include_folders_count(source: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (source.parent / "value.h").rename(more / "value.h")
    first = host_build.build([source], [f"-I{more}"], defines={"MORE": 2})
    (more / "value.h").write_text("#define VALUE 60\n", encoding="utf-8")
    second = host_build.build([source], [f"-I{more}"], defines={"MORE": 2})
    assert (answer(first), answer(second)) == (42, 62)


@needs_compiler
def test_a_program(source: Path) -> None:
    program = host_build.build([source], kind="exe", defines={"MORE": 2})
    assert subprocess.run([program]).returncode == 42


@needs_compiler
def test_a_failed_build_says_what_the_compiler_said(source: Path, tmp_path: Path) -> None:
    with pytest.raises(host_build.BuildFailed, match="MORE"):
        host_build.build([source])
    assert not [file for file in (tmp_path / "cache").iterdir() if file.suffix != ".lock"]


@needs_compiler
def test_processes_that_ask_at_once_get_one_file(source: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kvproof_kernels.host_build import build;"
        "print(build([Path(sys.argv[1])], defines={'MORE': 2}))"
    )
    command = [sys.executable, "-c", program, str(source)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0].strip() for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(said) == 1
    assert answer(Path(said.pop())) == 42
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1


def test_no_compiler(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(host_build.NoCompiler, match=r"g\+\+ and clang\+\+ not found on PATH"):
        host_build.build([source])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(host_build.NoCompiler, match="no-such-compiler not found"):
        host_build.build([source])


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVPROOF_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert host_build.cache_folder() == tmp_path / "kvproof"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert host_build.cache_folder() == Path.home() / ".cache" / "kvproof"

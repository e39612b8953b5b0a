"""Everything one runs here: `nox -l` lists it, bare `nox` judges and measures the reference.

What stands behind `--` goes to the command of the same name: `nox -s conformance -- --impl plain`
is `kvproof conformance --impl plain`.
"""

import hashlib
import os
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.sessions = ["conformance", "bench"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

CONSTRAINTS = "constraints.txt"
WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
NATIVE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".inl"}


def _install(session: nox.Session, what: str) -> None:
    """Install the project with extras, unless it is there and what decides its content is unchanged."""
    place = Path(session.virtualenv.location)
    stamp = place / "installed"
    said = [Path(name).read_text(encoding="utf-8") for name in (CONSTRAINTS, "pyproject.toml")]
    state = hashlib.sha256("\n".join([what, *said]).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return
    try:
        session.install("-c", CONSTRAINTS, "-e", what, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    except CommandFailed:
        session.error(
            "pip could not install the project; its own message is above. If no version was found: check "
            f"your network, package index and {CONSTRAINTS}. If the environment is broken: delete {place}"
        )
    session.run_install("python", "-c", WRITE, str(stamp), state, log=False)


def _run(session: nox.Session, environment: str, program: str, *arguments: str) -> None:
    """Run a program of a shared environment; the session has none of its own."""
    scripts = "Scripts" if os.name == "nt" else "bin"
    session.run(str(session.cache_dir.parent / environment / scripts / program), *arguments)


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install what conformance, bench and tests share; runs by itself before them."""
    _install(session, ".[dev]")


@nox.session(default=False)
def tools(session: nox.Session) -> None:
    """Install what lint, compare and report share, without torch; runs by itself before them."""
    _install(session, ".[dev,report]")


@nox.session(venv_backend="none", requires=["environment"])
def conformance(session: nox.Session) -> None:
    """Is it right? Judge an implementation: nox -s conformance -- --impl ./my_adapter.py:make"""
    _run(session, "environment", "kvproof", "conformance", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def bench(session: nox.Session) -> None:
    """How fast is it? Measure implementations: nox -s bench -- --impl plain"""
    _run(session, "environment", "kvproof", "bench", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def tests(session: nox.Session) -> None:
    """Does the harness catch what it must? Its own tests: nox -s tests -- -k kill"""
    _run(session, "environment", "pytest", *session.posargs)


@nox.session(venv_backend="none", requires=["tools"])
def compare(session: nox.Session) -> None:
    """What changed? Two result files: nox -s compare -- OLD NEW"""
    _run(session, "tools", "kvproof", "compare", *session.posargs)


@nox.session(venv_backend="none", requires=["tools"])
def report(session: nox.Session) -> None:
    """Tables of the newest results, or of those named: nox -s report"""
    _run(session, "tools", "kvproof", "report", *session.posargs)


@nox.session(venv_backend="none", requires=["tools"])
def lint(session: nox.Session) -> None:
    """Style, types, who imports whom, and the specification's own rules."""
    _run(session, "tools", "ruff", "check")
    _run(session, "tools", "ruff", "format", "--check")
    _run(session, "tools", "mypy")
    _run(session, "tools", "lint-imports")
    _run(session, "tools", "kvproof", "spec", "--lint")
    native = sorted(str(path) for path in Path("kernels").rglob("*") if path.suffix in NATIVE)
    if native:
        _run(session, "tools", "clang-format", "--dry-run", "--Werror", *native)

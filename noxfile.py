"""Everything one runs here: `nox -l` lists it, bare `nox` judges and measures the reference.

What stands behind `--` goes to the command of the same name: `nox -s conformance -- --impl plain`
is `kvproof conformance --impl plain`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2025.2"
nox.options.sessions = ["conformance", "bench"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"

CONSTRAINTS = "constraints.txt"
TORCH_PINS = "# torch and what it alone brings"  # the last part of the file begins so
WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])"
KERNEL_TESTS = [f"harness/kvproof/selftest/test_{name}.py" for name in ("gates", "driver")]
SIDE_BY_SIDE = ["-n", "logical", "--maxprocesses", "8", "--dist", "loadgroup"]
NATIVE = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".inl"}


def _install(session: nox.Session, what: str, torch: str = "pinned") -> None:
    """Install the project with extras, unless it is there and what decides its content is unchanged.

    torch: "pinned", "any" or "none". A requirement in KVPROOF_TORCH, such as "torch==2.9.1" or a wheel's
    path, takes its place: whoever has a GPU needs the build that fits the driver.
    """
    place = Path(session.virtualenv.location)
    stamp = place / "installed"
    pins = Path(CONSTRAINTS).read_text(encoding="utf-8")
    own = os.environ.get("KVPROOF_TORCH", "") if torch != "none" else ""
    said = "\n".join([what, own, pins, Path("pyproject.toml").read_text(encoding="utf-8")])
    state = hashlib.sha256(said.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return
    constraints = CONSTRAINTS
    if own or torch == "any":
        constraints = str(place / CONSTRAINTS)
        session.run_install("python", "-c", WRITE, constraints, pins.partition(TORCH_PINS)[0], log=False)
    try:
        wanted = ["-c", constraints, "-e", what, *([own] if own else [])]
        session.install(*wanted, env={"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    except CommandFailed:
        session.error(
            "pip could not install the project; its own message is above. If no version was found: check "
            f"your network, package index and {CONSTRAINTS}. If the environment is broken: delete {place}"
        )
    session.run_install("python", "-c", WRITE, str(stamp), state, log=False)


def _borrow(session: nox.Session) -> None:
    """Let the session import what the caller's own Python has: torch for its driver, the baselines."""
    ask = "import sys, sysconfig; print(sys.version_info[:2], sysconfig.get_path('platlib'), sep='|')"
    python = shutil.which("python") or sys.executable
    version, _, packages = subprocess.check_output([python, "-c", ask], text=True).strip().partition("|")
    if version == str(sys.version_info[:2]):
        find = "import sysconfig; print(sysconfig.get_path('platlib'))"
        place = session.run_install("python", "-c", find, silent=True, log=False)
        borrowed = str(Path(str(place).strip()) / "borrowed.pth")
        session.run_install("python", "-c", WRITE, borrowed, packages, log=False)


def _run(session: nox.Session, environment: str, program: str, *arguments: str) -> None:
    """Run a program of a shared environment; the session has none of its own."""
    scripts = "Scripts" if os.name == "nt" else "bin"
    session.run(str(session.cache_dir.parent / environment / scripts / program), *arguments)


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install what conformance, bench and tests share, with torch; runs by itself before them."""
    _install(session, ".[browser,dev,kernel,report]")


@nox.session(default=False)
def tools(session: nox.Session) -> None:
    """Install what lint, compare and report share, without torch; runs by itself before them."""
    _install(session, ".[dev,report]", torch="none")


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
    """Does the harness catch what it must? Its own tests, on all cores: nox -s tests -- -k kill"""
    chosen = any(a.startswith(("-n", "--numprocesses", "--dist", "--pdb")) for a in session.posargs)
    if not chosen:  # the processes share the cores
        session.env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "2")
    _run(session, "environment", "pytest", *([] if chosen else SIDE_BY_SIDE), *session.posargs)


@nox.session(venv_backend="none", requires=["environment" if "--from" in sys.argv else "tools"])
def compare(session: nox.Session) -> None:
    """What changed? Two runs: nox -s compare -- OLD NEW; or a commit and this tree, measured in turns:
    nox -s compare -- --from main
    """
    first, *others = session.posargs or [""]
    if first != "--from":
        _run(session, "tools", "kvproof", "compare", *session.posargs)
        return
    if not others:
        session.error("--from: name a commit, such as main or HEAD~1")
    said = subprocess.run(
        ["git", "rev-parse", "--verify", "-q", f"{others[0]}^{{commit}}"], capture_output=True, text=True
    )
    if said.returncode:
        session.error(f"--from {others[0]}: no such commit here")
    commit = said.stdout.strip()
    place = session.cache_dir.parent / "commits" / commit
    if not (place / ".git").exists():
        session.run_install("git", "clone", "-q", "--no-checkout", ".", str(place), external=True)
    session.run_install("git", "-C", str(place), "checkout", "-q", "--detach", commit, external=True)
    _run(session, "environment", "kvproof", "bench", "--against", str(place), *others[1:])


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


@nox.session(default=False)
def kernels(session: nox.Session) -> None:
    """Do the GPU kernels compile, and pass the static gates? No GPU needed: nox -s kernels -- --all"""
    _install(session, ".[compile]", torch="none")
    session.run("python", "-m", "kvproof_kernels", "gates", *session.posargs)
    session.run("python", "-m", "kvproof_kernels", "nvcc")
    session.run("pytest", "-q", *KERNEL_TESTS)


@nox.session(venv_backend="none", default=False)
def thirdparty(session: nox.Session) -> None:
    """Judge and measure a third party in an environment of its own: nox -s thirdparty -- vllm

    Its impl.toml says what pip installs, each line by itself. What stands behind its name goes to both
    commands: `--checkout PATH` for one that has no package. Findings fail nothing here.
    """
    known = {
        path.parent.name: facts
        for path in sorted(Path("impls/kvproof_impls").glob("*/impl.toml"))
        if "environment" in (facts := tomllib.loads(path.read_text(encoding="utf-8")))
    }
    name, *options = session.posargs or [""]
    if name not in known:
        session.error(f"no third party {name!r}: name one of {', '.join(known)}")
    place = session.cache_dir.parent / f"thirdparty-{name}"
    scripts = place / ("Scripts" if os.name == "nt" else "bin")
    pip = [str(scripts / "python"), "-m", "pip", "install", "-c", CONSTRAINTS]
    said, stamp = repr(known[name]["environment"]), place / "installed"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != said:
        session.run_install(sys.executable, "-m", "virtualenv", "--clear", str(place), silent=True)
        for line in [["-e", "."], *known[name]["environment"]]:
            session.run_install(*pip, *line)
        stamp.write_text(said, encoding="utf-8")
    kvproof = str(scripts / "kvproof")
    for profile in known[name].get("profiles", ["manager"]):
        judge = [kvproof, "conformance", "--impl", name, "--profile", profile, *options]
        session.run(*judge, success_codes=[0, 1])
    # In one process: an engine takes long to import, and the differences are far beyond a process's.
    measure = [kvproof, "bench", "--rounds", "1", "--impl", "reference", "--impl", name, *options]
    session.run(*measure, success_codes=[0, 1])


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """Everything on a GPU, in under 8 minutes: compile, judge, measure beside what is installed here."""
    if not shutil.which("nvidia-smi") and not Path("/dev/nvidia0").exists():
        session.skip("no NVIDIA GPU; not run: kernels on a device, their benchmark, compute-sanitizer")
    _borrow(session)
    _install(session, ".[gpu,report]", torch="any")
    session.run("python", "-m", "kvproof.gpu", *session.posargs)

"""Finds an implementation by what the user typed.

`NAME[:FACTORY]` an installed one, `path/to/adapter.py[:FACTORY]`, `package.module[:FACTORY]`, or
`process:COMMAND`. The factory is `make` unless named. Installed are ours and those that packages name in
their entry points.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

IMPLEMENTATIONS = "kvproof_impls"
PROCESS = "process:"
"""Begins the name of a program that is spoken to in JSON lines (`kvproof.protocol`)."""
ENTRY_POINTS = "kvproof.subjects"
"""Group in which a package names the modules of its adapters."""
CHECKOUT_VARIABLE = "KVPROOF_CHECKOUT"
"""Adapters to repositories that are no packages read the folder of the checkout from here."""
FACTS = (
    *("name", "summary", "version", "requires", "install", "checkout", "programs", "device"),
    *("distribution", "profiles", "environment", "factories"),
)
"""Keys of impl.toml; distribution, profiles and environment are for the environments of third parties,
factories.NAME.requires for what one factory needs besides."""


class SubjectError(Exception):
    """The implementation cannot be found or opened; the message says what is allowed."""


@dataclass(frozen=True)
class Implementation:
    """Where an implementation is and what it needs; nothing of it is imported yet."""

    spec: str
    """As the user typed it; opens the same one in another process."""
    module: str
    """Dotted module name, or the path of a Python file; of a program the last file that its command names."""
    factory_name: str
    name: str
    summary: str = ""
    version: str = ""
    requires: dict[str, str] = field(default_factory=dict)
    """Import name -> the command that installs it."""
    checkout: str = ""
    """owner/name of the repository whose checkout it reads."""
    programs: tuple[str, ...] = ()
    """Programs that it runs, alternatives apart by "|": "g++|clang++"."""
    device: str = ""
    """"cuda" for one that needs a GPU."""
    command: str = ""
    """Starts the program of one out of process."""

    def missing(self) -> dict[str, str]:
        """What is not here: import name or checkout -> what to do about it."""
        absent = {m: how for m, how in self.requires.items() if not _importable(m)}
        for program in self.programs:
            if not any(map(shutil.which, program.split("|"))):
                absent[program.replace("|", " or ")] = "install a C++ compiler"
        if self.device == "cuda" and not any(Path("/dev").glob("nvidia[0-9]*")):
            absent["NVIDIA GPU"] = "run it on a machine that has one"
        folder = os.environ.get(CHECKOUT_VARIABLE, "")
        if self.checkout and not Path(folder or "?").is_dir():
            absent[f"checkout of {self.checkout}"] = "give the folder of a checkout with --checkout PATH"
        return absent

    def factory(self) -> Callable[..., Any]:
        """Import the module and return its factory `make(num_blocks, block_size)`.

        Raises:
            SubjectError: the module cannot be imported, or has no such factory.
        """
        if self.command:
            from kvproof.subjects.remote import RemoteFactory

            return RemoteFactory(self.command)
        try:
            module = _load(self.module)
        except Exception as error:
            raise SubjectError(
                f"{self.spec}: importing {self.module} failed: {type(error).__name__}: {error}"
            ) from error
        made = getattr(module, self.factory_name, None)
        if not callable(made):
            from kvproof.subjects.making import offered

            raise SubjectError(
                f"{self.spec}: {self.module} has no factory {self.factory_name!r}; {offered(module)}"
            )
        return made  # type: ignore[no-any-return]


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package around it
        return False


def _load(module: str) -> ModuleType:
    if not module.endswith(".py"):
        return importlib.import_module(module)
    path = Path(module).resolve()
    name = f"kvproof_adapter_{path.stem}"
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    sys.path.insert(0, str(path.parent))  # an adapter may import its neighbours
    try:
        spec.loader.exec_module(loaded)
    finally:
        sys.path.remove(str(path.parent))
    return loaded


def _folders() -> dict[str, Path]:
    """Installed implementations: name -> folder that holds impl.toml and adapter.py."""
    package = importlib.util.find_spec(IMPLEMENTATIONS)
    roots = package.submodule_search_locations if package else None
    found: dict[str, Path] = {}
    for root in roots or []:
        for toml in sorted(Path(root).glob("*/impl.toml")):
            found.setdefault(toml.parent.name, toml.parent)
    return found


def _installed(name: str, folder: Path, spec: str, factory: str) -> Implementation:
    return Implementation(
        spec=spec,
        module=f"{IMPLEMENTATIONS}.{name}.adapter",
        factory_name=factory,
        name=name if factory == "make" else f"{name}:{factory}",
        **_facts(folder / "impl.toml", factory),
    )


def _facts(path: Path, factory: str) -> dict[str, Any]:
    """What an impl.toml says of a factory.

    Raises:
        SubjectError: it is no TOML, or has a key that nobody reads.
    """
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SubjectError(f"{path}: not TOML: {error}") from None
    if unknown := sorted(set(facts) - set(FACTS)):
        raise SubjectError(f"{path}: {unknown[0]!r} is not known; allowed: {', '.join(FACTS)}")
    install = facts.get("install", "pip install {}")
    needed = [*facts.get("requires", []), *facts.get("factories", {}).get(factory, {}).get("requires", [])]
    return {
        "summary": facts.get("summary", ""),
        "version": _version(facts),
        "requires": {m: install.format(m) for m in needed},
        "checkout": facts.get("checkout", ""),
        "programs": tuple(facts.get("programs", ())),
        "device": facts.get("device", ""),
    }


def _version(facts: dict[str, Any]) -> str:
    """That of the installed distribution that impl.toml names; of others the one that it states."""
    try:
        return importlib.metadata.version(facts["distribution"])
    except (KeyError, importlib.metadata.PackageNotFoundError):
        return str(facts.get("version", ""))


def _declared() -> dict[str, importlib.metadata.EntryPoint]:
    """Adapters that installed packages name in their entry points."""
    return {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def _of_package(point: importlib.metadata.EntryPoint, spec: str, factory: str) -> Implementation:
    return Implementation(
        spec=spec,
        module=point.module,
        factory_name=factory,
        name=point.name if factory == "make" else f"{point.name}:{factory}",
        summary=str(point.dist.metadata["Summary"] or "") if point.dist else "",
        version=point.dist.version if point.dist else "",
    )


def _program(spec: str) -> Implementation:
    """One out of process; files that its command names are named by their whole path from here on."""
    from kvproof.subjects.channel import words_of

    try:
        words = words_of(spec.removeprefix(PROCESS))
    except ValueError as error:
        raise SubjectError(f"{spec}: {error}; for example process:./my_server") from None
    program = shutil.which(words[0])
    if program is None:
        raise SubjectError(f"{spec}: there is no program {words[0]}")
    files = [w for n, w in enumerate(words) if Path(w).is_file() and (n or os.sep in w)]
    command = shlex.join(str(Path(w).absolute()) if w in files else w for w in words)
    module = (
        str(Path(files[-1]).absolute()) if files else program
    )  # not resolved: a link may be a virtual environment
    return Implementation(PROCESS + command, module, "make", name=spec, command=command)


def installed() -> list[Implementation]:
    """Every implementation that can be named, in order of name."""
    ours = {n: _installed(n, f, n, "make") for n, f in _folders().items()}
    theirs = {n: _of_package(p, n, p.attr or "make") for n, p in _declared().items()}
    return [one for _, one in sorted((theirs | ours).items())]


def find(spec: str, default: str = "make") -> Implementation:
    """The implementation that `spec` names; `default` is the factory of one named without.

    Raises:
        SubjectError: there is none; the message lists the installed ones.
    """
    if spec.startswith(PROCESS):
        return _program(spec)
    where, _, factory = spec.rpartition(":") if ":" in spec else (spec, "", default)
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise SubjectError(f"{spec}: there is no file {where}")
        path = Path(where).resolve()
        facts = path.with_name("impl.toml")
        return Implementation(
            spec=f"{path}:{factory}",
            module=str(path),
            factory_name=factory,
            name=f"{where}:{factory}",
            **(_facts(facts, factory) if path.name == "adapter.py" and facts.is_file() else {}),
        )
    folders = _folders()
    if where in folders:
        return _installed(where, folders[where], f"{where}:{factory}", factory)
    declared = _declared()
    if where in declared:
        point = declared[where]
        factory = point.attr or factory if spec == where and default == "make" else factory
        return _of_package(point, f"{where}:{factory}", factory)
    try:
        known = importlib.util.find_spec(where) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        names = ", ".join(sorted({*folders, *declared})) or "none"
        raise SubjectError(
            f"no implementation {where!r}: installed are {names}; "
            "or give path/to/adapter.py:make, package.module:make or process:COMMAND"
        )
    return Implementation(f"{where}:{factory}", where, factory, name=spec)

"""For adapters to repositories that are no packages: opens the checkout that the user names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace

VARIABLE = "KVPROOF_CHECKOUT"
"""Where `kvproof --checkout DIR` leaves the folder of the checkout."""


class Stub(ModuleType):
    """Stands for a module that must not be imported: whatever is asked of it is an empty namespace class."""

    def __getattr__(self, name: str) -> type[SimpleNamespace]:
        if name.startswith("__"):  # what Python itself asks of a module
            raise AttributeError(name)
        return SimpleNamespace


def open_package(package: str, *stubs: str, under: str = "") -> list[ModuleType]:
    """Make `package`, a folder of the checkout, importable without running its `__init__`.

    Afterwards `from package.module import Name` runs that module and what it imports, nothing else; the
    modules in `stubs` (named inside the package) are empty ones, which are returned in order. For packages
    whose `__init__` needs a GPU, a model or what is not installed. `under` is the folder that holds it.

    Raises:
        ImportError: no checkout is named, or it has no such folder.
    """
    module = sys.modules[package] = ModuleType(package)
    module.__path__ = [str(_folder(under, *package.split(".")))]
    return _stubbed(f"{package}.{stub}" for stub in stubs)


def open_folder(folder: str, *stubs: str) -> list[ModuleType]:
    """Make the modules that lie in `folder` of the checkout ("" for its root) importable by their names.

    The modules in `stubs` are empty ones, which are returned in order.

    Raises:
        ImportError: no checkout is named, or it has no such folder.
    """
    sys.path.insert(0, str(_folder(folder)))
    return _stubbed(stubs)


def _folder(*parts: str) -> Path:
    checkout = os.environ.get(VARIABLE, "")
    if not checkout:
        raise ImportError(f"no checkout is named: give its folder with --checkout DIR, or set {VARIABLE}")
    path = Path(checkout, *parts)
    if not path.is_dir():
        what = ".".join(filter(None, parts))
        raise ImportError(f"{checkout} is no checkout that holds {what}: there is no folder {path}")
    return path


def _stubbed(names: Iterable[str]) -> list[ModuleType]:
    stubs: list[ModuleType] = [Stub(name) for name in names]
    sys.modules.update({stub.__name__: stub for stub in stubs})
    return stubs

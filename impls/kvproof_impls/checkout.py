"""For adapters to repositories that are no packages: opens the checkout that the user names."""

from __future__ import annotations

import os
import sys
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


def open_package(package: str, *stubs: str) -> list[ModuleType]:
    """Make `package`, a folder of the checkout, importable without running its `__init__`.

    Afterwards `from package.module import Name` runs that module and what it imports, nothing else; the
    modules in `stubs` (named inside the package) are empty ones, which are returned in order. For packages
    whose `__init__` needs a GPU, a model or what is not installed.

    Raises:
        ImportError: no checkout is named, or it has no such folder.
    """
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise ImportError(f"no checkout is named: give its folder with --checkout DIR, or set {VARIABLE}")
    path = Path(folder, *package.split("."))
    if not path.is_dir():
        raise ImportError(f"{folder} is no checkout that holds {package}: there is no folder {path}")
    module = sys.modules[package] = ModuleType(package)
    module.__path__ = [str(path)]
    stubbed: list[ModuleType] = [Stub(f"{package}.{stub}") for stub in stubs]
    sys.modules.update({stub.__name__: stub for stub in stubbed})
    return stubbed

"""Mistakes planted in the CUDA source, to see that the shim's builds and the requirements notice them.

mutants.toml lists them. A change replaces text that occurs exactly once; when an edit of the source takes it
away, planting the mutant is an error, so that none is ever tested as the unchanged kernel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvproof_kernels.host_build import cache_folder

CUDA = Path(__file__).parent / "cuda"
LIST = Path(__file__).parent / "mutants.toml"

Shows = Literal[
    "lengths",  # a decode call with lengths about a block, and one of several splits
    "long table",  # a decode call with more table entries a split than are staged at once
    "features",  # a decode call with softcap, ALiBi, a window and scales
    "large pool",  # a decode call whose blocks are past 2^31 bytes
    "prefill",
    "write",
    "copy_blocks",
]


@dataclass(frozen=True)
class Mutant:
    """One planted mistake.

    requirement: that it breaks. builds: each of them notices it, by a stop or a wrong result, in a case
    that has what `shows` says. core: decode only, "tensor" or "lanes" if only that one has the mistake.
    changes: (file, old text, new text).
    """

    name: str
    requirement: str
    builds: tuple[Literal["plain", "asan", "tsan"], ...]
    shows: Shows
    changes: tuple[tuple[str, str, str], ...]
    core: Literal["tensor", "lanes", "any"] = "any"


class Unplantable(RuntimeError):
    """A mutant's text is not in the source exactly once: the mutant must be adapted to the source."""


def mutated_source(name: str) -> Path:
    """A folder with the CUDA source and this one mistake in it, kept in the cache.

    Raises:
        KeyError: there is no such mutant.
        Unplantable: the source has changed.
    """
    mutant = MUTANTS[name]
    texts = {file.name: file.read_text(encoding="utf-8") for file in CUDA.iterdir() if file.is_file()}
    for file, old, new in mutant.changes:
        count = texts[file].count(old)
        if count != 1:
            raise Unplantable(f"mutant {name}: {file} has {old!r} {count} times; it must be there once")
        texts[file] = texts[file].replace(old, new)
    digest = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:20]
    folder = cache_folder() / "mutants" / f"{name}-{digest}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    new_folder = Path(tempfile.mkdtemp(dir=folder.parent))
    for file, text in texts.items():
        (new_folder / file).write_text(text, encoding="utf-8")
    try:
        os.rename(new_folder, folder)
    except OSError:  # another process was faster
        shutil.rmtree(new_folder)
    return folder


def _read() -> dict[str, Mutant]:
    tables = tomllib.loads(LIST.read_text(encoding="utf-8"))
    mutants = {}
    for name, table in tables.items():
        changes = tuple((file, old, new) for file, old, new in table.pop("changes"))
        mutants[name] = Mutant(name, builds=tuple(table.pop("builds")), changes=changes, **table)
    return mutants


MUTANTS = _read()

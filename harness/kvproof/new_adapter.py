"""Writes the skeleton of an adapter: `kvproof new-adapter NAME --kind manager`."""

from __future__ import annotations

from pathlib import Path

SKELETONS = Path(__file__).with_name("skeletons")
KINDS = ("manager", "scheduler", "kernel", "ranks")
FILES = {"adapter.py": "{kind}.py.txt", "impl.toml": "impl.toml.txt", "known.toml": "known.toml.txt"}


def write(name: str, kind: str, folder: Path) -> list[Path]:
    """Write the files of a new adapter into `folder`/`name`.

    Args:
        name: a Python name: the folder's, and the one in the comments.
        kind: one of KINDS.

    Returns:
        Their paths.

    Raises:
        ValueError: the name cannot be a module's, or the kind is not known.
        FileExistsError: one of the files is there; then none is written.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot name a Python module: letters, digits and _ are allowed")
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: allowed are {', '.join(KINDS)}")
    place = folder / name
    if there := [str(place / file) for file in FILES if (place / file).exists()]:
        raise FileExistsError(f"{', '.join(there)}: already there; nothing was written")
    place.mkdir(parents=True, exist_ok=True)
    for file, skeleton in FILES.items():
        text = (SKELETONS / skeleton.format(kind=kind)).read_text(encoding="utf-8")
        (place / file).write_text(text.format(name=name, kind=kind), encoding="utf-8")
    return [place / file for file in FILES]

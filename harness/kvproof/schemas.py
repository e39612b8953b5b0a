"""JSON Schemas of the files under `specs/` and of result files, generated from the records.

`python -m kvproof.schemas` writes them; `stale` says which committed ones differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kvproof.derived import Document, Matrix, Past
from kvproof.protocol import Answer, Request
from kvproof.records import Capability, Case, Line, Profile, Requirement
from kvproof.spec import find

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """File name -> text of each schema."""
    # Files that people write may leave defaults out; lines that kvproof writes have every field.
    made: dict[str, dict[str, Any]] = {
        "requirement": Requirement.model_json_schema(),
        "capability": Capability.model_json_schema(),
        "profile": Profile.model_json_schema(),
        "case": Case.model_json_schema(),
        "process-request": TypeAdapter[Any](Request).json_schema(),
        "process-answer": TypeAdapter[Any](Answer).json_schema(),
        "history-line": Past.model_json_schema(mode="serialization"),
        "document": Document.model_json_schema(mode="serialization"),
        "matrix": Matrix.model_json_schema(mode="serialization"),
        "result-line": TypeAdapter[Any](Line).json_schema(mode="serialization"),
    }
    return {
        f"{name}.json": json.dumps({"$schema": DIALECT, **schema}, indent=2, ensure_ascii=False) + "\n"
        for name, schema in made.items()
    }


def write(folder: Path | None = None) -> list[Path]:
    """Write the schemas into `folder` (default: schemas/ of the specification); returns the paths."""
    folder = find() / "schemas" if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in schemas().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def stale(folder: Path | None = None) -> list[str]:
    """What differs between the committed schemas and the records, one line a file; [] if nothing."""
    folder = find() / "schemas" if folder is None else folder
    lines = []
    wanted = schemas()
    for name, text in wanted.items():
        path = folder / name
        if not path.is_file():
            lines.append(f"schemas/{name}: missing; run python -m kvproof.schemas")
        elif path.read_text(encoding="utf-8") != text:
            lines.append(f"schemas/{name}: differs from the records; run python -m kvproof.schemas")
    for path in sorted(folder.glob("*.json")):
        if path.name not in wanted:
            lines.append(f"schemas/{path.name}: no record has this schema; remove it")
    return lines


if __name__ == "__main__":
    for written in write():
        print(written)

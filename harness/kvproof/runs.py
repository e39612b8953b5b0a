"""The folder of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path


def new_folder(results: Path, what: str, now: datetime | None = None) -> Path:
    """Make a folder for a run in `results`, named by the time it began and `what` runs.

    A second run in the same second gets a number.

    Raises:
        OSError: it cannot be made; FileExistsError: a thousand runs of this second are there.
    """
    name = f"{now or datetime.now(UTC):%Y%m%dT%H%M%SZ}-{what}"
    for number in range(1, 1001):
        folder = results / (f"{name}-{number}" if number > 1 else name)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{results / name}: a thousand runs of this second are there")

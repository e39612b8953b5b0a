"""A process of the benchmark: it takes an order on its standard input, and is ended if it hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

FAILED = "ended with status 1"
"""What is said of one that has given up by itself: its last words are the reasons."""


def run(module: str, order: Mapping[str, Any], turn: int, longest_s: float) -> tuple[str, list[str]]:
    """Run `python -m module` to its end, or for `longest_s`.

    Its words go to a file and not to a pipe: who is left in the background by a subject would keep that open.
    Hashes of strings are seeded by `turn`, the number of the round, so all that take part meet the same ones.

    Returns:
        How it ended, "" if well, and the lines of its standard error.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        try:
            done = subprocess.run(
                [sys.executable, "-m", module],
                input=json.dumps(order),
                stdout=subprocess.DEVNULL,
                stderr=words,
                text=True,
                check=False,
                timeout=longest_s,
                env={**os.environ, "PYTHONHASHSEED": str(turn + 1)},
            )
            status = f"ended with status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            status = f"hung: it was ended after {longest_s:g} s"
        words.seek(0)
        return status, words.read().strip().splitlines()

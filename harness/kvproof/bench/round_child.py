"""One round of one implementation in a process of its own: an order on stdin, its samples in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kvproof.bench.matrix import Point
from kvproof.bench.measure import Job
from kvproof.bench.subject import open_subject
from kvproof.bench.timed import run_timed
from kvproof.records import Sample
from kvproof.subjects import find


def main() -> None:
    """Measure what the order says; ends with status 1 and the faults on stderr if pytest could not."""
    order: dict[str, Any] = json.load(sys.stdin)
    subject = open_subject(find(order["spec"]), order["block_size"])
    points = [Point(**p) for p in order["points"]]
    with Path(order["into"]).open("w", encoding="utf-8") as file:

        def emit(sample: Sample) -> None:
            file.write(json.dumps({"sample": sample.model_dump(), "seconds": list(job.behind)}) + "\n")

        job = Job([subject], points, order["budget_s"], emit, patience=order["patience"])
        faults = run_timed(job)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()

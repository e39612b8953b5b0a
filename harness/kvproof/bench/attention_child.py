"""The attention matrix in a process of its own: an order on stdin, its samples in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kvproof.bench.attention import AttentionJob, groups
from kvproof.bench.kernels import open_kernel
from kvproof.bench.matrix import Point
from kvproof.bench.timed import run_timed
from kvproof.records import Sample
from kvproof.subjects import find


def main() -> None:
    """Measure what the order says; ends with status 1 and the faults on stderr if pytest could not.

    `kernels` are (name, where) each, `job` the other fields of `AttentionJob`.
    """
    order: dict[str, Any] = json.load(sys.stdin)
    subjects = []
    for name, where in order["kernels"]:
        subjects.append(open_kernel(find(where)))
        subjects[-1].name = name
    with Path(order["into"]).open("w", encoding="utf-8") as file:

        def emit(sample: Sample) -> None:
            found = {"sample": sample.model_dump(), "seconds": list(job.behind)}
            file.write(json.dumps(found) + "\n")
            file.flush()  # the next kernel may end this process

        points = groups([Point(**p) for p in order["points"]])
        job = AttentionJob(subjects, points, emit=emit, **order["job"])
        faults = run_timed(job)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()

"""One round of one implementation in a process of its own: an order on stdin, its samples in a file."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof.bench import ranks
from kvproof.bench.clock import calibrate
from kvproof.bench.matrix import STEPPED, Point
from kvproof.bench.measure import Job
from kvproof.bench.subject import open_subject
from kvproof.bench.timed import run_timed
from kvproof.records import Sample
from kvproof.subjects import find


def main() -> None:
    """Measure what the order says, the points of ranks last.

    The calibration loop runs once before the subject is opened: `loop` is how much longer it takes then.
    Ends with status 1 and the faults on stderr if pytest could not.
    """
    order: dict[str, Any] = json.load(sys.stdin)
    before = calibrate()
    subject = open_subject(find(order["spec"]), order["block_size"])
    gc.freeze()  # the collection before each cell need not walk the modules
    points = [Point(**p) for p in order["points"]]
    timed, stepped = ([p for p in points if (p.cell in STEPPED) is which] for which in (False, True))
    with Path(order["into"]).open("w", encoding="utf-8") as file:

        def write(sample: Sample, seconds: Sequence[float]) -> None:
            if sample.rounds and sample.cal:
                sample.counters["loop"] = sample.cal / before
            file.write(json.dumps({"sample": sample.model_dump(), "seconds": list(seconds)}) + "\n")
            file.flush()  # what is done counts, whatever ends this process

        def emit(sample: Sample) -> None:
            write(sample, job.behind)

        job = Job([subject], timed, order["budget_s"], emit, patience=order["patience"])
        faults = run_timed(job) if timed else []
        for sample, seconds in ranks.measured(subject, stepped):
            write(sample, seconds)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()

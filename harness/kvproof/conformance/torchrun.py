"""`torchrun --nproc-per-node 4 -m kvproof.conformance.torchrun`: judges the ranks that torchrun has started.

Each process of torchrun holds one rank; the judge runs beside rank 0. What stands behind the module's name
goes to `kvproof conformance`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from kvproof.conformance.look import OF_ONE_RANK
from kvproof.subjects import under_torchrun
from kvproof.subjects.rank_worker import serve


def judge(arguments: list[str], status: list[int]) -> None:
    """Run the judge; its exit status goes into `status`."""
    named = [] if "--impl" in arguments else ["--impl", f"reference:{OF_ONE_RANK}"]
    command = [sys.executable, "-m", "kvproof.cli", "conformance", "--profile", "ranks", *named, *arguments]
    try:
        status.append(subprocess.run(command, check=False).returncode)
    finally:
        under_torchrun.finish()


def main() -> int:
    """The judge's exit status on rank 0, else 0."""
    if not under_torchrun.here():
        sys.stderr.write(
            "start it with torchrun: torchrun --nproc-per-node 4 -m kvproof.conformance.torchrun\n"
        )
        return 2
    rank, status = int(os.environ["RANK"]), list[int]()
    judging = threading.Thread(target=judge, args=(sys.argv[1:], status))
    if rank == 0:
        judging.start()
    number = 1
    while (orders := under_torchrun.connect(rank, number)) is not None:
        serve(orders)
        number += 1
    if rank == 0:
        judging.join()
    return status[0] if status else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that wait for a rank of a former group must not keep the process

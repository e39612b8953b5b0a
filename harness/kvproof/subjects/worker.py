"""The worker process: holds one implementation, runs the histories it is sent.

Frames of pickle over stdin and stdout. What the subject prints goes to stderr. The current
operation and its start are kept in a small mapped file, so that the parent can see a hang and
kill the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from kvproof.contract import ContractError, wrong_policy
from kvproof.records import Case, Observation
from kvproof.subjects.calls import drive
from kvproof.subjects.drive import Clock, describe
from kvproof.subjects.drive_kernel import describe_kernel, drive_kernel
from kvproof.subjects.drive_ranks import drive_ranks
from kvproof.subjects.drive_scheduler import drive_scheduler
from kvproof.subjects.find import SubjectError, find
from kvproof.subjects.growth import measure_growth
from kvproof.subjects.making import arguments, wrong_arguments
from kvproof.subjects.parent import die_with_parent
from kvproof.subjects.rank_processes import GroupFactory, ProcessGroup, is_of_one_rank
from kvproof.subjects.remote import RemoteFactory

BEAT = struct.Struct("<qd")
"""Operation index (-1 the factory) and the monotonic second it began; 0.0 when idle."""


def send(stream: BinaryIO, message: Any) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """The next message.

    Raises:
        EOFError: the other side is gone.
    """
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<q", head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class Beat:
    """Writes the operation that is under way into the mapped file."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), BEAT.size)

    @contextlib.contextmanager
    def __call__(self, step: int) -> Iterator[None]:
        BEAT.pack_into(self.map, 0, step, time.monotonic())
        try:
            yield
        finally:
            BEAT.pack_into(self.map, 0, step, 0.0)


def describe_subject(subject: Any) -> dict[str, Any]:
    """Capabilities and attributes of a subject of any profile, as plain data.

    Raises:
        TypeError: one of them is not of the contract's type.
    """
    return describe_kernel(subject) if hasattr(subject, "decode") else describe_manager(subject)


def describe_manager(manager: Any) -> dict[str, Any]:
    """Capabilities and attributes of a subject, as plain data.

    Raises:
        TypeError: one of them is not of the contract's type.
        SubjectError: its policy has a name that the contract has not.
    """
    capabilities, guard = manager.capabilities, getattr(manager, "guard", None)
    if isinstance(capabilities, str):
        raise TypeError(f"capabilities is the string {capabilities!r}; a frozenset of names is needed")
    policy = {str(name): value for name, value in dict(getattr(manager, "policy", {})).items()}
    wrong = [name for name, value in policy.items() if not isinstance(value, str | int)]
    if wrong or not isinstance(policy.get("watermark", 0), int):
        raise TypeError(f"policy {policy!r}: values are str or int, the watermark an int")
    if unknown := wrong_policy(policy):
        raise SubjectError(unknown)
    return {
        "capabilities": sorted(str(c) for c in capabilities),
        "members": sorted(
            n for n in dir(manager) if not n.startswith("_") and callable(getattr(manager, n, None))
        ),
        "reserved": sorted(int(r) for r in getattr(manager, "reserved", ())),
        "lookahead": int(getattr(manager, "lookahead", 0)),
        "lazy": bool(getattr(manager, "lazy", False)),
        "policy": policy,
        "guard": guard if guard is None or isinstance(guard, str | int) else str(guard),
        "publish": str(getattr(manager, "publish", "commit")),
        "processes": isinstance(manager, ProcessGroup),
        "world": manager.crew.world if isinstance(manager, ProcessGroup) else 0,
    }


def serve(spec: str, beat: Beat, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until end-of-file."""
    try:
        with beat(-1):
            make = find(spec).factory()
            if isinstance(make, RemoteFactory):
                make.own_group = False
            if is_of_one_rank(make):
                make = GroupFactory(spec)
    except (SubjectError, SystemExit) as error:
        send(answers, ("cannot open", str(error) or describe(error)))
        return
    send(answers, ("ready", None))
    while True:
        kind, payload = receive(requests)
        try:
            if kind == "run":
                send(answers, ("observations", run_case(make, payload, beat)))
            elif kind == "describe":
                given = arguments(make, payload)
                if wrong := wrong_arguments(make, given):
                    send(answers, ("error", wrong))
                    continue
                with beat(-1), ending(make(*given)) as subject:
                    send(answers, ("description", describe_subject(subject)))
            elif kind == "growth":
                name, sizes = payload
                send(answers, ("growth", measure_growth(make, name, sizes, beat)))
        except EOFError:
            raise
        except SubjectError as error:
            send(answers, ("error", str(error)))
        except (Exception, SystemExit) as error:
            send(answers, ("error", describe(error)))


@contextlib.contextmanager
def ending(subject: Any) -> Iterator[Any]:
    """The subject; its processes are given back in the end."""
    try:
        yield subject
    finally:
        if isinstance(subject, ProcessGroup):
            subject.close()


Driver = Callable[[Any, Case, Clock], Iterator[Observation]]
DRIVERS: dict[str, Driver] = {
    "manager": drive,
    "scheduler": drive_scheduler,
    "kernel": drive_kernel,
}


def run_case(make: Any, case: Case, beat: Clock) -> list[Observation]:
    """Observations of one case on a fresh manager."""
    try:
        with beat(-1):
            given = arguments(make, case.shape, case.history)
            subject = make(*given)
    except ContractError as error:  # its way to say that it does not serve this size
        return [Observation(outcome="unserved", detail=_made(case, error))]
    except (Exception, SystemExit) as error:
        return [Observation(outcome="error", detail=_made(case, error))]
    if case.profile == "ranks":
        with ending(subject):
            return list(drive_ranks(subject, case, beat, given[-1]))
    return list(DRIVERS[case.profile](subject, case, beat))


def _made(case: Case, error: BaseException) -> str:
    return f"make{case.shape}: {describe(error)}"


def main() -> None:
    die_with_parent()
    spec, beat = sys.argv[1], Beat(sys.argv[2])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of the subject, C code included, must not break the frames
    sys.stdout = sys.stderr
    status = 0
    try:
        serve(spec, beat, sys.stdin.buffer, answers)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass  # the parent is gone, or wants to go
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        os._exit(status)  # a subject's threads or atexit hooks must not keep the process


if __name__ == "__main__":
    main()

"""Serves an implementation in Python by the protocol: `python -m kvproof.subjects.serve NAME`.

A peer to write a program against, and the other side of the harness's own tests.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from pydantic import TypeAdapter, ValidationError

from kvproof import protocol
from kvproof.contract import ContractError
from kvproof.subjects.find import SubjectError, find
from kvproof.subjects.remote import CALLS, NOT_SERVED, OPTIONAL
from kvproof.subjects.worker import describe_manager

REQUESTS: TypeAdapter[Any] = TypeAdapter(protocol.Request)
COPYING = frozenset({"append", "fork", "truncate", "swap_out", "swap_in"})
"""Requests whose answer is the copies that they took."""
BESIDE = frozenset({"add", "append_batch", "plan"})
"""Requests that answer something else and have copies beside it."""


class Server:
    """The manager or scheduler that is open, and what answers each line."""

    def __init__(self, makes: dict[str, Callable[..., Any]]) -> None:
        self.makes = makes
        """By profile; `uncached` is the manager's without its prefix cache."""
        self.subject: Any = None
        self.live: set[Any] = set()

    def answer(self, line: str) -> str:
        """The answer to one line."""
        try:
            message = json.loads(line)
            REQUESTS.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "union_tag_invalid":
                return self._dumped({"err": "Unsupported", "msg": f"no request {message.get('op')!r}"})
            where = ".".join(map(str, first["loc"]))
            return self._dumped({"err": "BadInput", "msg": f"{where}: {first['msg']}".removeprefix(": ")})
        except ValueError as error:
            return self._dumped({"err": "BadInput", "msg": f"not JSON: {error}"})
        return self._dumped(self.dispatch(message))

    def dispatch(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message; an error of the subject is one as well."""
        try:
            if message["op"] == "run":
                return {"ok": self._run(message["ops"])}
            if message["op"] == "open":
                return {"ok": self._open(message)}
            if self.subject is None:
                return {"err": "Refused", "msg": "open comes first"}
            if message["op"] == "state":
                return {"ok": self._state()}
            return self._call(message)
        except ContractError as error:
            kind = next((c.__name__ for c in type(error).__mro__ if c.__name__ in _NAMES), "Internal")
            return {"err": kind, "msg": str(error)}
        except Exception as error:
            return {"err": "Internal", "msg": f"{type(error).__name__}: {error}"}

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        profile = message.get("profile", "manager")
        wanted = profile if message.get("cache", True) or profile != "manager" else "uncached"
        make = self.makes.get(wanted) or self.makes.get(profile)
        if make is None:
            raise SubjectError(f"there is no {profile} here")
        sizes = [message[n] for n in ("num_blocks", "block_size", "max_seqs", "max_tokens") if n in message]
        self.subject, self.live = make(*sizes), set()
        said = describe_manager(self.subject)
        members = set(said.pop("members"))
        del said["processes"], said["world"]  # of ranks, which are not served
        said["capabilities"] = sorted(set(said["capabilities"]) - NOT_SERVED)
        said["members"] = sorted(members.intersection(OPTIONAL))
        said["pad"] = int(getattr(self.subject, "pad", -1))
        window = getattr(self.subject, "window", None)
        return said | ({} if window is None else {"window": window})

    def _state(self) -> dict[str, Any]:
        m = self.subject
        tables = {str(s): [int(b) for b in m.table(s)] for s in sorted(self.live)}
        counts = "refcount" in m.capabilities
        owned = sorted({b for t in tables.values() for b in t if b >= 0}) if counts else []
        return {"free": m.free_blocks(), "tables": tables, "refs": {str(b): m.refcount(b) for b in owned}}

    def _run(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        start = time.perf_counter_ns()
        results = [self.dispatch(message) for message in messages]
        return {"results": results, "ns": time.perf_counter_ns() - start}

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        op, m = message["op"], self.subject
        arguments = dict(message)
        del arguments["op"]
        order = CALLS[op][0]
        positional = [arguments[name] for name in order if name in arguments and name != "keys"]
        keyed = {"keys": arguments["keys"]} if arguments.get("keys") is not None else {}
        if not hasattr(m, op):
            return {"err": "Unsupported", "msg": op}
        value = getattr(m, op)(*positional, **keyed)
        if op in ("add", "fork"):
            self.live.add(arguments["child" if op == "fork" else "seq"])
        elif op == "free":
            self.live.discard(arguments["seq"])
        moved = m.copies() if op in COPYING | BESIDE and "copies" in m.capabilities else []
        if op in COPYING:
            return {"ok": moved}
        return {"ok": _plain(op, value)} | ({"copies": moved} if moved else {})

    @staticmethod
    def _dumped(answer: dict[str, Any]) -> str:
        return json.dumps(answer, default=int)


_NAMES = frozenset({"OutOfBlocks", "Refused", "UnknownSequence", "BadInput", "BadSlots"})


def _plain(op: str, value: Any) -> Any:
    """The value as JSON has it."""
    if op == "batch":
        return dict(zip(("table", "num_blocks", "seq_lens"), (x.tolist() for x in value), strict=True))
    if op == "csr":
        names = ("indptr", "indices", "last_block_len")
        return dict(zip(names, (x.tolist() for x in value), strict=True))
    if op == "block_keys":
        return [key.hex() for key in value]
    if op == "plan":
        return [[rid, lo, hi, [int(b) for b in table]] for rid, lo, hi, table in value]
    return value.tolist() if hasattr(value, "tolist") else value


def server(name: str) -> Server:
    """One that opens this implementation.

    Raises:
        SubjectError: there is none.
    """
    makes = {"manager": find(name).factory()}
    for profile, factory in (("scheduler", "make_scheduler"), ("uncached", "make_uncached")):
        with contextlib.suppress(SubjectError):
            makes[profile] = find(name, factory).factory()
    return Server(makes)


def serve(server: Server, lines: Iterable[str], out: TextIO) -> None:
    """Answer line by line until there is no more."""
    for line in lines:
        out.write(server.answer(line) + "\n")
        out.flush()


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # what the implementation prints is no answer
    serve(server(sys.argv[1]), sys.stdin, answers)

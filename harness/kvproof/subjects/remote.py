"""Managers and schedulers that programs in other processes hold (`kvproof.protocol`)."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from kvproof import contract, protocol
from kvproof.protocol import Failed
from kvproof.subjects.channel import Channel, ProgramFault
from kvproof.subjects.drive import Nonsense

T = TypeVar("T")
M = TypeVar("M", bound=protocol.Message)
Convert = Callable[["Remote", Any], Any]

NOT_SERVED = frozenset({"partial", "codec", "sizing", "memory", "data", "speculate"})
"""Capabilities that have no messages."""
ATTRIBUTES = ("reserved", "lookahead", "lazy", "pad", "policy", "publish")
ERRORS: dict[str, type[contract.ContractError]] = {
    e.__name__: e
    for e in (
        contract.OutOfBlocks,
        contract.Refused,
        contract.UnknownSequence,
        contract.BadInput,
        contract.BadSlots,
    )
}


def _value(remote: Remote, answer: Any) -> Any:
    remote.copied += getattr(answer, "copies", ())
    return list(answer.ok) if isinstance(answer.ok, tuple) else answer.ok


def _moved(remote: Remote, answer: protocol.Moved) -> None:
    remote.copied += answer.ok or ()


def _batch(remote: Remote, answer: protocol.Batch) -> tuple[Any, ...]:
    rows = np.array(answer.ok.table, np.int32)
    table = rows.reshape(len(answer.ok.table), -1) if len(answer.ok.table) else rows.reshape(0, 0)
    return table, np.array(answer.ok.num_blocks, np.int32), np.array(answer.ok.seq_lens, np.int32)


def _csr(remote: Remote, answer: protocol.Csr) -> tuple[Any, ...]:
    arrays = answer.ok.indptr, answer.ok.indices, answer.ok.last_block_len
    return tuple(np.array(a, np.int32) for a in arrays)


def _bytes(remote: Remote, answer: protocol.Lines) -> list[bytes]:
    return [bytes.fromhex(key) for key in answer.ok]


CALLS: dict[str, tuple[tuple[str, ...], type[protocol.Message], Convert]] = {
    "add": (("seq", "tokens", "keys"), protocol.Count, _value),
    "append": (("seq", "tokens"), protocol.Moved, _moved),
    "commit": (("seq", "computed"), protocol.Done, _value),
    "free": (("seq",), protocol.Done, _value),
    "table": (("seq",), protocol.Ints, _value),
    "free_blocks": ((), protocol.Count, _value),
    "match": (("tokens", "keys"), protocol.Count, _value),
    "block_keys": (("tokens", "keys"), protocol.Lines, _bytes),
    "can_add": (("seq", "tokens", "keys"), protocol.Truth, _value),
    "can_append": (("seq", "n"), protocol.Truth, _value),
    "fork": (("seq", "child"), protocol.Moved, _moved),
    "refcount": (("block",), protocol.Count, _value),
    "truncate": (("seq", "length"), protocol.Moved, _moved),
    "swap_out": (("seq",), protocol.Moved, _moved),
    "swap_in": (("seq",), protocol.Moved, _moved),
    "batch": (("seqs",), protocol.Batch, _batch),
    "csr": (("seqs",), protocol.Csr, _csr),
    "slots": (("seq", "lo", "hi"), protocol.Ints, _value),
    "append_batch": (("seqs", "tokens"), protocol.Ints, _value),
    "commit_batch": (("seqs",), protocol.Done, _value),
    "alloc": ((), protocol.Count, _value),
    "retain": (("block",), protocol.Done, _value),
    "release": (("block",), protocol.Done, _value),
    "release_many": (("blocks",), protocol.Done, _value),
    "reset_prefix_cache": ((), protocol.Truth, _value),
    "selfcheck": ((), protocol.Lines, _value),
    "wire": (("seq",), protocol.Ints, _value),
    "submit": (("rid", "tokens", "max_new", "priority"), protocol.Done, _value),
    "has_work": ((), protocol.Truth, _value),
    "plan": ((), protocol.Planned, _value),
    "feed": (("tokens",), protocol.Ints, _value),
    "abort": (("rid",), protocol.Done, _value),
    "preempted": ((), protocol.Ints, _value),
    "rejected": ((), protocol.Rejected, _value),
    "output": (("rid",), protocol.Ints, _value),
}
"""Member -> names of its arguments, what its answer looks like, what its caller gets."""
REQUIRED = {
    "manager": ("add", "append", "commit", "free", "table", "free_blocks"),
    "scheduler": ("submit", "has_work", "plan", "feed", "abort", "preempted", "free_blocks"),
}
MEMBERS = {
    "stable_keys": ("block_keys",),
    "probe": ("can_add", "can_append"),
    "fork": ("fork",),
    "copies": ("copies",),
    "refcount": ("refcount",),
    "truncate": ("truncate",),
    "swap": ("swap_out", "swap_in"),
    "batch": ("batch",),
    "csr": ("csr",),
    "slots": ("slots",),
    "steps": ("append_batch",),
    "blocks": ("alloc", "retain", "release"),
    "reset": ("reset_prefix_cache",),
    "selfcheck": ("selfcheck",),
    "wire": ("wire",),
    "output": ("output",),
    "rejected": ("rejected",),
}
"""Capability -> the members that its name promises."""
OPTIONAL = ("match", "commit_batch", "release_many")


class Unserved(Nonsense):
    """The program knows no such request."""


MOST_RUN = 1024
"""Requests of one `run`: with more of them a program's time is that of walking over what it has parsed."""


class Later:
    """Stands for the answer of a request that is recorded and not yet sent."""

    value: Any = None


class Recording:
    """Requests that are noted instead of sent; None while they are sent."""

    requests: list[tuple[Remote, str, dict[str, Any], Later]] | None = None


class Remote:
    """The subject that a program holds; the members it offers are those of a class made for it."""

    def __init__(self, channel: Channel, factory: RemoteFactory, description: protocol.Description) -> None:
        self._channel, self._recording = channel, factory.recording
        self.capabilities = frozenset(description.capabilities)
        self.copied: protocol.Copies = ()
        self._state: protocol.StateOf | None = None
        self._has_state = True
        for name in ATTRIBUTES:
            setattr(self, name, getattr(description, name))
        for name in ("window", "guard"):
            if getattr(description, name) is not None:
                setattr(self, name, getattr(description, name))
        weakref.finalize(self, factory.release, channel).atexit = False

    def _take_copies(self) -> list[Any]:
        copied, self.copied = self.copied, ()
        return list(copied)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Inside, the answer to `state`, if there is one, stands for those about tables and counts."""
        if self._has_state:
            try:
                self._state = self._parse(protocol.State, self._channel.ask(b'{"op": "state"}')).ok
            except Unserved:
                self._has_state = False
        try:
            yield
        finally:
            self._state = None

    def _call(self, name: str, message: dict[str, Any]) -> Any:
        """Send it, or note it while requests are recorded."""
        if self._state is not None and (found := _seen(self._state, name, message)) is not None:
            return found
        if self._recording.requests is not None:
            self._recording.requests.append((self, name, message, later := Later()))
            return later
        _, kind, convert = CALLS[name]
        return convert(self, self._parse(kind, self._channel.ask(json.dumps(message).encode())))

    def _parse(self, kind: type[M], answer: bytes) -> M:
        """The answer of its kind.

        Raises:
            ContractError: it names one. ProgramFault: it is of no kind that this request has.
        """
        try:
            return kind.model_validate_json(answer)
        except ValidationError as error:
            try:
                failed = Failed.model_validate_json(answer)
            except ValidationError:
                raise self._channel.refuse(f"gave an answer that is none: {_first(error)}", answer) from None
            raise _raised(failed) from None

    def _run(self, recorded: Sequence[tuple[str, dict[str, Any], Later]]) -> int:
        """Let the program do and time recorded requests; nanoseconds. Answers go where they are awaited."""
        text = json.dumps({"op": "run", "ops": [message for _, message, _ in recorded]}).encode()
        answer = self._channel.ask(text)
        ran = self._parse(protocol.RunDone, answer).ok
        if len(ran.results) != len(recorded):
            why = f"answered {len(ran.results)} of the {len(recorded)} requests of a run"
            raise self._channel.refuse(why, answer)
        for (name, _, later), result in zip(recorded, ran.results, strict=True):
            _, kind, convert = CALLS[name]
            if "err" in result:
                raise _raised(Failed.model_validate(result))
            try:
                later.value = convert(self, kind.model_validate(result, strict=False))
            except ValidationError as error:
                why = f"gave a result of {name} that is none: {_first(error)}"
                raise self._channel.refuse(why, json.dumps(result).encode()) from None
        return ran.ns


def _seen(state: protocol.StateOf, name: str, message: dict[str, Any]) -> Any:
    """What the state answers; None if it does not."""
    if name == "free_blocks":
        return state.free
    if name == "table":
        table = state.tables.get(str(message["seq"]))
        return None if table is None else list(table)
    return state.refs.get(str(message["block"]), 0) if name == "refcount" else None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"


def _raised(failed: Failed) -> Exception:
    if failed.err in ERRORS:
        return ERRORS[failed.err](failed.msg)
    kind = Unserved if failed.err == "Unsupported" else ProgramFault
    return kind(f"the program answered {failed.err}: {failed.msg or 'no message'}")


def _member(name: str) -> Callable[..., Any]:
    arguments = CALLS[name][0]

    def member(self: Remote, *given: Any, **named: Any) -> Any:
        message = {"op": name, **dict(zip(arguments, given, strict=False)), **named}
        if name == "can_append":
            message.setdefault("n", 1)
        if message.get("keys", ...) is None:
            del message["keys"]
        return self._call(name, message)

    return member


@cache
def _class_of(members: frozenset[str]) -> type[Remote]:
    """A class with these members: what a subject offers is what it has."""
    made = {name: Remote._take_copies if name == "copies" else _member(name) for name in members}
    return type("Program", (Remote,), made)


class RemoteFactory:
    """Makes managers, and with budgets schedulers, of a program; each that is alive has a process."""

    def __init__(self, command: str, cache: bool = True, recording: Recording | None = None) -> None:
        self.command, self.cache = command, cache
        self.recording = recording or Recording()
        self.own_group = True
        """False in a worker process: it ends with what it started."""
        self._idle: list[Channel] = []

    def __call__(
        self, num_blocks: int, block_size: int, max_seqs: int | None = None, max_tokens: int | None = None
    ) -> Remote:
        """Open it in a process that is free, or in a new one.

        Raises:
            ContractError: it refuses these sizes. ProgramFault: there is no answer, or none that is one.
        """
        given = (max_seqs, max_tokens)
        manager = given == (None, None)
        if not manager and not all(type(x) is int for x in given):
            raise TypeError("a program has managers and schedulers; ranks and kernels are judged in process")
        profile = "manager" if manager else "scheduler"
        sizes = {"num_blocks": num_blocks, "block_size": block_size}
        budgets = {} if manager else {"max_seqs": max_seqs, "max_tokens": max_tokens}
        message = {"op": "open", "proto": protocol.PROTO, "profile": profile, **sizes, **budgets}
        if not self.cache:
            message["cache"] = False
        channel = self._channel()
        description = self._opened(channel, channel.ask(json.dumps(message).encode()))
        named = frozenset(description.capabilities)
        if lacking := sorted(named & NOT_SERVED):
            raise ProgramFault(f"capability {lacking[0]!r} is judged in process only")
        members = {*REQUIRED[profile], *(m for c in named for m in MEMBERS.get(c, ()))}
        members |= set(OPTIONAL).intersection(description.members)
        return _class_of(frozenset(members))(channel, self, description)

    def _opened(self, channel: Channel, answer: bytes) -> protocol.Description:
        try:
            return protocol.Opened.model_validate_json(answer).ok
        except ValidationError as error:
            try:
                failed = Failed.model_validate_json(answer)
            except ValidationError:
                raise channel.refuse(f"gave an answer that is none: {_first(error)}", answer) from None
            self.release(channel)
            raise _raised(failed) from None

    def _channel(self) -> Channel:
        while self._idle:
            if (channel := self._idle.pop()).alive:
                return channel
        return Channel(self.command, self.own_group)

    def release(self, channel: Channel) -> None:
        """Its subject is gone; the process may open another."""
        if channel.alive:
            self._idle.append(channel)

    def uncached(self) -> RemoteFactory:
        """The same program, asked for no prefix cache; both are timed by either."""
        return RemoteFactory(self.command, cache=False, recording=self.recording)

    def timed(self, call: Callable[[], T]) -> tuple[T, float]:
        """The result of a call and the seconds its requests took inside the program, by `run`.

        The call may use one subject, and none of the answers it gets: they are put into the tuples and
        lists that it returns.

        Raises:
            ContractError, ProgramFault: a request failed.
        """
        recorded: list[tuple[Remote, str, dict[str, Any], Later]] = []
        self.recording.requests = recorded
        try:
            result = call()
        finally:
            self.recording.requests = None
        if not recorded:
            return result, 0.0
        remote = recorded[0][0]
        if any(one is not remote for one, *_ in recorded):
            raise ValueError("a timed call is about one subject")
        requests = [(name, message, later) for _, name, message, later in recorded]
        pieces = [requests[at : at + MOST_RUN] for at in range(0, len(requests), MOST_RUN)]
        nanoseconds = sum([remote._run(piece) for piece in pieces])
        return _resolved(result), nanoseconds / 1e9


def _resolved(value: Any) -> Any:
    if isinstance(value, Later):
        return value.value
    return type(value)(map(_resolved, value)) if type(value) in (list, tuple) else value

"""The answers an implementation may give instead of a result, and the checks adapters share."""

from __future__ import annotations

from collections.abc import Container, Sequence


class ContractError(Exception):
    """The answers an implementation may give instead of a result.

    After any of them nothing observable has changed, recency order excepted: tables, counts,
    references, contents and cache are what they were before the call.
    """


class OutOfBlocks(ContractError):
    """Not enough blocks now; the call could succeed once others leave."""


class Refused(ContractError):
    """Never fits, or not allowed in this state (append while swapped out)."""


class UnknownSequence(ContractError):
    """No live sequence has this id."""


class BadInput(ContractError, ValueError):
    """The arguments are wrong: negative or duplicate id, no tokens, a token that is no integer."""


class BadSlots(ContractError):
    """Raised by adapters to token-slot caches: the slots of one block are not consecutive.

    Such a subject has no block to name, so this is a finding on KVP-TABLE-002.
    """


def require_sizes(num_blocks: object, block_size: object) -> None:
    """For adapters: a pool of these sizes may be made.

    Raises:
        BadInput: one of them is no int of 1 or more.
    """
    for name, size in (("num_blocks", num_blocks), ("block_size", block_size)):
        if type(size) is not int or size < 1:
            raise BadInput(f"{name} {size!r}: needs an int of 1 or more")


def require_new(seq: object, live: Container[object]) -> None:
    """For adapters: `seq` may be added.

    Raises:
        BadInput: it is no int, negative, or alive.
    """
    if type(seq) is not int or seq < 0 or seq in live:
        raise BadInput(f"sequence id {seq!r}: needs an int, not negative, that is not in use")


def require_tokens(tokens: Sequence[object]) -> None:
    """For adapters: `tokens` may be added or appended.

    Raises:
        BadInput: there is none, or one that is no int.
    """
    wrong = [t for t in tokens if type(t) is not int]
    if wrong or not len(tokens):
        raise BadInput(f"tokens: needs at least one int; got {wrong[0]!r}" if wrong else "no tokens")

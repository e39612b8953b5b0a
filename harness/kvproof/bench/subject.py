"""An implementation opened for timing: in process, with the prefix cache on or off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvproof.subjects import Implementation, SubjectError, find

Make = Callable[[int, int], Any]
UNCACHED = "make_uncached"
"""Factory of the same implementation without its prefix cache."""


class Unsupported(Exception):
    """The subject does not offer what the cell needs; the message says what."""


class Wrong(Exception):
    """A result failed its check, so its time does not count; the message says what was wrong."""


@dataclass
class Subject:
    """Factories of one implementation and what it says of itself.

    spec: opens it in another process; empty if it cannot be.
    overhead: blocks that the pool needs beyond those a sequence may take (reserved, watermark).
    """

    name: str
    make: Make
    block_size: int
    version: str = ""
    spec: str = ""
    make_uncached: Make | None = None
    capabilities: frozenset[str] = field(init=False)
    overhead: int = field(init=False)
    lookahead: int = field(init=False)
    lazy: bool = field(init=False)
    evicts: str = field(init=False)

    def __post_init__(self) -> None:
        probe = self.make(64, self.block_size)
        policy = getattr(probe, "policy", None) or {}
        self.capabilities = frozenset(probe.capabilities)
        self.overhead = len(list(getattr(probe, "reserved", ()))) + int(policy.get("watermark", 0))
        self.lookahead = int(getattr(probe, "lookahead", 0))
        self.lazy = bool(getattr(probe, "lazy", False))
        self.evicts = str(policy.get("evict", ""))

    def open(self, usable: int, caching: bool | None = None) -> Any:
        """A fresh manager in which sequences may take `usable` blocks.

        Args:
            usable: blocks, reserved ones and the watermark not counted.
            caching: as in `factory`.

        Raises:
            Unsupported: as in `factory`.
        """
        return self.factory(caching)(usable + self.overhead, self.block_size)

    def factory(self, caching: bool | None) -> Make:
        """What makes its managers: with or without prefix cache, None as `make` does it.

        Raises:
            Unsupported: it has no prefix cache, or has one and no factory `make_uncached`.
        """
        if caching and "prefix" not in self.capabilities:
            raise Unsupported("no prefix cache")
        if caching is False and "prefix" in self.capabilities:
            if self.make_uncached is None:
                raise Unsupported("caching cannot be switched off")
            return self.make_uncached
        return self.make

    def need(self, *capabilities: str) -> None:
        """Raises Unsupported if one of `capabilities` is not named by the subject."""
        absent = [c for c in capabilities if c not in self.capabilities]
        if absent:
            raise Unsupported(f"no capability {absent[0]}")


def blocks_for(tokens: int, block_size: int) -> int:
    """ceil(tokens / block_size)."""
    return -(-tokens // block_size)


def open_subject(implementation: Implementation, block_size: int) -> Subject:
    """Import an implementation and ask it what it can do.

    Raises:
        SubjectError: it cannot be imported, or makes no manager of this block size.
    """
    make = implementation.factory()
    try:
        uncached: Make | None = find(f"{implementation.module}:{UNCACHED}").factory()
    except SubjectError:
        uncached = None
    try:
        return Subject(
            name=implementation.name,
            make=make,
            block_size=block_size,
            version=implementation.version,
            spec=implementation.spec,
            make_uncached=uncached,
        )
    except Exception as e:
        raise SubjectError(
            f"{implementation.name}: no manager of 64 blocks of {block_size} tokens: {type(e).__name__}: {e}"
        ) from e

"""Fingerprints: the KV of a token depends on every token and key before it and on nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any


class Fingerprints:
    """Interns whole histories as small ints: equal ints if and only if equal histories."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, Hashable, Hashable], int] = {}
        self._nodes: list[tuple[int, Hashable, Hashable]] = []

    def step(self, parent: int, token: Hashable, tag: Hashable = None) -> int:
        """The history that goes on from `parent` (-1 for none) with `token`."""
        node = (parent, token, tag)
        found = self._ids.get(node)
        if found is None:
            found = self._ids[node] = len(self._nodes)
            self._nodes.append(node)
        return found

    def extend(
        self, history: Sequence[int], tokens: Sequence[Any], keys: Mapping[str, Any] | None
    ) -> list[int]:
        """Fingerprints of `tokens` behind `history`, one each.

        salt and adapter are part of the root; a media item tags the positions it covers.
        """
        keys = keys or {}
        parent = history[-1] if history else self.root(keys)
        found = []
        for position, token in enumerate(tokens, start=len(history)):
            tags = tuple(
                (item, position - offset)
                for offset, length, item in keys.get("media", ())
                if offset <= position < offset + length
            )
            parent = self.step(parent, token, tags or None)
            found.append(parent)
        return found

    def root(self, keys: Mapping[str, Any]) -> int:
        domain = tuple((name, keys[name]) for name in ("salt", "adapter") if name in keys)
        return self.step(-1, "root", domain)

    def back(self, history: int) -> list[tuple[Hashable, Hashable]]:
        """(token, tag) of every step from the root on; the root itself is first."""
        path = []
        while history >= 0:
            history, token, tag = self._nodes[history]
            path.append((token, tag))
        return path[::-1]

"""The roots of prefix chains: each domain (salt, adapter) has one as long as somebody uses it."""

from __future__ import annotations

from .hashing import seed_of
from .inputs import Domain


class Domains:
    """Roots are negative, and a number is never given twice.

    Attributes:
        users: by root, the rows and published first blocks that belong to the domain.
    """

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self._roots: dict[Domain, int] = {}
        self._known: dict[int, tuple[Domain, int]] = {}  # by root: the domain and its seed
        self._next = -1

    def look_up(self, domain: Domain) -> tuple[int, int | None]:
        """(seed of the hash chain, root or None if nobody uses the domain)."""
        root = self._roots.get(domain)
        return (seed_of(domain), None) if root is None else (self.seed(root), root)

    def seed(self, root: int) -> int:
        """The seed of the domain with this root."""
        return self._known[root][1]

    def join(self, domain: Domain) -> int:
        """One more user of a domain, which may be new; its root."""
        root = self._roots.get(domain)
        if root is None:
            root = self._next
            self._next -= 1
            self._roots[domain] = root
            self._known[root] = domain, seed_of(domain)
            self.users[root] = 0
        self.use(root)
        return root

    def use(self, root: int) -> None:
        """One more user of a domain that is in use."""
        self.users[root] += 1

    def leave(self, root: int) -> None:
        """One user less; a domain without users is forgotten."""
        self.users[root] -= 1
        if not self.users[root]:
            del self.users[root], self._roots[self._known.pop(root)[0]]

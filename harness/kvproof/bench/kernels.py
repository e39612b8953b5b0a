"""An attention kernel opened for timing, in process, and what it does not serve."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvproof.contract import wrong_limits
from kvproof.subjects import Implementation, SubjectError

Decode: TypeAlias = Callable[[Any], Any]
"""Queries to outputs and lse; everything else of the step is bound."""


@dataclass
class KernelSubject:
    """A kernel of one implementation; `contract/kernel.py` says what it offers."""

    name: str
    kernel: Any
    version: str = ""
    spec: str = ""

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self.kernel.capabilities)

    def refuses(self, served: dict[str, Any], width: int) -> str:
        """Which of its limits leaves a call out, or ""; `served` is by name of a limit, in the singular.

        width: columns of the block table.
        """
        limits = self.kernel.limits
        for name, value in served.items():
            allowed: Sequence[Any] | None = limits.get(f"{name}s")
            if allowed is not None and value not in allowed:
                return f"{name.replace('_', ' ')} {value}: it serves {_few(allowed)}"
        multiple = limits.get("table_width_multiple", 1)
        if width % multiple:
            return f"table width {width}: it serves multiples of {multiple}"
        return ""

    def bound(self, q: Any, caches: tuple[Any, Any], table: Any, seq_lens: Any, scale: float) -> Decode:
        """Its decode with all but the queries bound; by `prepare`, outside the timing, if it has that."""
        rest = (*caches, table, seq_lens, scale)  # no copy of the table: its entries change between rounds
        if "prepare" in self.capabilities:
            prepared: Decode = self.kernel.prepare(q, *rest)
            return prepared
        decode = self.kernel.decode
        return lambda queries: decode(queries, *rest)


def _few(allowed: Sequence[Any]) -> str:
    some = ", ".join(map(str, list(allowed)[:8]))
    return some + (", ..." if len(allowed) > 8 else "") if allowed else "none"


def is_kernel(implementation: Implementation) -> bool:
    """Whether its factory is that of a kernel: `make()`, where a manager's has to be given sizes.

    Raises:
        SubjectError: it cannot be imported, or has no such factory.
    """
    try:
        parameters = inspect.signature(implementation.factory()).parameters.values()
    except (TypeError, ValueError):
        return False
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return not any(p.default is p.empty and p.kind not in rest for p in parameters)


def open_kernel(implementation: Implementation) -> KernelSubject:
    """Import an implementation and make its kernel.

    Raises:
        SubjectError: it cannot be imported, or makes no kernel.
    """
    make = implementation.factory()
    try:
        kernel = make()
        absent = [m for m in ("capabilities", "layout", "limits", "decode") if not hasattr(kernel, m)]
        wrong = "" if absent else wrong_limits(kernel.limits)
    except Exception as e:
        raise SubjectError(f"{implementation.name}: makes no kernel: {type(e).__name__}: {e}") from e
    if absent:
        raise SubjectError(f"{implementation.name}: a kernel has {', '.join(absent)}; this has not")
    if wrong:
        raise SubjectError(f"{implementation.name}: {wrong}")
    return KernelSubject(implementation.name, kernel, implementation.version, implementation.spec)

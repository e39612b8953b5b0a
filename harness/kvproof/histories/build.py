"""A short way to write histories down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvproof.records import Case, Operation


class History:
    """Operations in order. `add` and `append` are followed by their commit unless told not to be."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def op(self, op: str, **fields: Any) -> History:
        for name in ("tokens", "seqs", "blocks"):
            if fields.get(name) is not None:
                fields[name] = tuple(fields[name])
        self.operations.append(Operation(op=op, **fields))
        return self

    def add(self, seq: Any, tokens: Iterable[Any], *, commit: bool = True, **fields: Any) -> History:
        self.op("add", seq=seq, tokens=tokens, **fields)
        return self.commit(seq) if commit else self

    def append(self, seq: Any, *tokens: Any, commit: bool = True, **fields: Any) -> History:
        self.op("append", seq=seq, tokens=tokens, **fields)
        return self.commit(seq) if commit else self

    def commit(self, seq: Any, computed: int | None = None, **fields: Any) -> History:
        return self.op("commit", seq=seq, computed=computed, **fields)

    def free(self, *seqs: Any, **fields: Any) -> History:
        for seq in seqs:
            self.op("free", seq=seq, **fields)
        return self

    def fork(self, parent: int, child: int, **fields: Any) -> History:
        return self.op("fork", seq=parent, child=child, **fields)

    def truncate(self, seq: int, length: int, **fields: Any) -> History:
        return self.op("truncate", seq=seq, length=length, **fields)

    def step(self, seqs: Sequence[int], tokens: Sequence[int], **fields: Any) -> History:
        """append_batch and its commits."""
        self.op("append_batch", seqs=seqs, tokens=tokens, **fields)
        return self.op("commit_batch", seqs=seqs)

    def batch(self, *seqs: int) -> History:
        return self.op("batch", seqs=seqs)

    def reclaim(self, **fields: Any) -> History:
        return self.op("reclaim", **fields)

    def case(
        self,
        name: str,
        aim: str | Sequence[str],
        num_blocks: int,
        block_size: int,
        *,
        needs: Sequence[str] = (),
        stands_for: Sequence[str] = (),
        note: str = "",
        seed: int | None = None,
    ) -> Case:
        aims = (aim,) if isinstance(aim, str) else tuple(aim)
        return Case(
            id=name,
            aim=tuple(f"KVP-{a}" for a in aims),
            needs=tuple(sorted({*needs, *self._needed()})),
            num_blocks=num_blocks,
            block_size=block_size,
            history=tuple(self.operations),
            stands_for=tuple(f"KVP-{s}" for s in stands_for),
            note=note,
            seed=seed,
        )

    def _needed(self) -> set[str]:
        return set().union(*(needed_by(op) for op in self.operations), *self._deferred())

    def _deferred(self) -> list[set[str]]:
        """`defer` when something comes between an add or append and its commit."""
        for op, following in zip(self.operations, [*self.operations[1:], None], strict=True):
            wrong = bool(op.args)
            if op.op in ("add", "append") and not wrong and not (op.expect or {}).get("outcome"):
                if following is None:
                    continue  # it ends here: nothing sees that no commit follows
                whole = following.op == "commit" and following.computed is None
                if not (whole and following.seq == op.seq):
                    return [{"defer"}]
        return []


_NEEDS = {
    "append_batch": {"steps"},
    "fork": {"fork"},
    "truncate": {"truncate"},
    "swap_out": {"swap", "copies"},
    "swap_in": {"swap", "copies"},
    "match": {"prefix", "match"},
    "block_keys": {"stable_keys"},
    "batch": {"batch"},
    "csr": {"csr"},
    "slots": {"slots"},
    "wire": {"wire"},
    "codec": {"codec"},
    "reset": {"reset"},
    "alloc": {"blocks"},
    "retain": {"blocks"},
    "release": {"blocks"},
    "release_many": {"blocks"},
    "sizing": {"sizing"},
}


def needed_by(op: Operation) -> set[str]:
    """Capabilities without which the operation cannot be called."""
    needs = set(_NEEDS.get(op.op, ()))
    if op.keys:
        needs.add("keys")
    if op.op == "append" and len(op.tokens or ()) > 1:
        needs.add("multi")
    return needs


def runnable(case: Case, capabilities: Iterable[str]) -> set[str]:
    """Capabilities that the case needs and the subject lacks."""
    return set(case.needs) - set(capabilities)

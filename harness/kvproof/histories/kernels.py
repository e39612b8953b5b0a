"""Cases of kernels, fitted to what a subject serves.

A template names a case once and for all; its sizes follow the subject: what a template does not insist
on becomes the nearest value that the subject's limits allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvproof.contract.kernel import DTYPES, FEATURES
from kvproof.histories.payload import asked
from kvproof.records import Case, Operation, Setting

SPARE_BLOCKS = 5
LEAST_CODED = 32
"""Head sizes below have too few signs for a slot's id and for keys that differ."""
SHARE = 12
"""So many random cases that follow each other share dtype, head size and group."""


class Unserved(Exception):
    """The subject's limits or capabilities leave the case out; the message says which."""


@dataclass(frozen=True)
class Serves:
    """The limits of a subject, as the cases ask them."""

    limits: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    capabilities: Collection[str] = ()

    def allows(self, name: str, value: object) -> bool:
        """A list that the subject leaves out is no limit."""
        return name not in self.limits or value in self.limits[name]

    def need(self, name: str, value: object) -> None:
        """Raises Unserved where the value is outside the limit."""
        if not self.allows(name, value):
            raise Unserved(f"limits: {name} has no {value}")

    def nearest(self, name: str, wanted: int) -> int:
        """The value that is served and nearest to the wanted one, in ratio."""
        if self.allows(name, wanted):
            return wanted
        served = [int(v) for v in self.limits[name]]
        if not served:
            raise Unserved(f"limits: {name} is empty")
        return min(served, key=lambda v: (abs(np.log(v / wanted)), v))

    def dtype(self, *preferred: str) -> str:
        """The first that is served, of the preferred ones and then of all."""
        for name in (*preferred, *DTYPES):
            if self.allows("dtypes", name):
                return name
        raise Unserved(f"limits: dtypes has none of {', '.join(DTYPES)}")

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f for f in FEATURES if f in self.limits.get("features", ()))

    @property
    def empty(self) -> bool:
        return "empty" in self.capabilities


Lengths = Callable[[int], Sequence[int]]
"""Lengths of the sequences, from the block size."""
Calls = Callable[[int, Serves], Sequence[Operation]]
"""The calls of a case, from the block size and what is served."""


@dataclass(frozen=True)
class Template:
    """One directed case; `case` fits it to a subject."""

    id: str
    aim: tuple[str, ...]
    calls: Calls
    lengths: Lengths
    block_size: int = 16
    dtype: str = ""
    """Insisted on; else the first that is served, `prefer` before others."""
    prefer: str = ""
    head_size: int = 0
    """Insisted on; else the nearest to 64."""
    group: int = 0
    """Insisted on; else the nearest to 4."""
    setting: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    num_blocks: int = 0
    """At least; 0: as many as are used, and a few."""
    stands_for: tuple[str, ...] = ()
    note: str = ""

    def case(self, serves: Serves) -> Case:
        """The case for this subject.

        Raises:
            Unserved: its limits leave out what the case is about.
        """
        for name, value in (("dtypes", self.dtype), ("head_sizes", self.head_size), ("groups", self.group)):
            if value:
                serves.need(name, value)
        size = serves.nearest("block_sizes", self.block_size)
        lengths = tuple(n for n in self.lengths(size) if n > 0 or serves.empty)
        setting = Setting(
            dtype=self.dtype or serves.dtype(*filter(None, [self.prefer])),
            head_size=self.head_size or serves.nearest("head_sizes", 64),
            group=self.group or serves.nearest("groups", 4),
            lengths=lengths,
            **self.setting,
        )
        if setting.queries:  # blocks may be smaller than the ones the case was written for
            fitting = tuple(min(q, n) for q, n in zip(setting.queries, lengths, strict=True))
            setting = setting.model_copy(update={"queries": fitting})
        if setting.payload == "coded":
            if setting.head_size < LEAST_CODED:
                raise Unserved(f"limits: head_sizes has none of {LEAST_CODED} and more")
            most = max((len(asked(setting, n, size)) for n in lengths), default=1)
            setting = setting.model_copy(update={"repeat": -(-most // setting.group)})
        history = tuple(self.calls(size, serves))
        if not history:
            raise Unserved("limits: nothing is left out that could be asked for")
        for op in (Operation(op="", args={"features": setting.features}), *history):
            for feature in (op.args or {}).get("features", {}):
                if feature not in serves.features:
                    raise Unserved(f"limits: features has no {feature}")
        used = [setting, *(setting.model_copy(update=op.args or {}) for op in history)]
        least = max(sum(-(-n // (s.block_size or size)) for n in s.lengths) for s in used)
        blocks = max(self.num_blocks, least) if self.num_blocks else SPARE_BLOCKS + least
        return Case(
            id=self.id,
            aim=self.aim,
            needs=self.needs,
            num_blocks=blocks,
            block_size=size,
            history=history,
            kernel=setting,
            stands_for=self.stands_for,
            note=self.note,
        )


def call(op: str = "decode", **args: Any) -> Operation:
    return Operation(op=op, args=args or None)


def drawn(seed: int, serves: Serves, wide: bool) -> Case:
    """A seeded random case: one decode, one prefill where it is served. wide: any shape that is served."""
    rng = np.random.default_rng((seed, 23))
    few = np.random.default_rng((seed // SHARE, 29))  # a kernel may have to be compiled for each of these

    def pick(values: Sequence[Any], rng: np.random.Generator = rng) -> Any:
        return values[int(rng.integers(len(values)))]

    size = serves.nearest("block_sizes", pick((1, 2, 4, 8, 16, 32, 64, 128, *((3, 48, 256) if wide else ()))))
    head = serves.nearest("head_sizes", pick((64, 80, 96, 128, 192, 256), few) if wide else 64)
    group = serves.nearest("groups", pick((1, 2, 3, 4, 5, 7, 8, 16), few) if wide else 4)
    dtypes = [d for d in DTYPES if serves.allows("dtypes", d)] or [serves.dtype()]
    dtype = pick(dtypes, few if wide else rng)
    edges = (
        1,
        size,
        size + 1,
        2 * size,
        3 * size - 1,
        int(rng.integers(1, 400)),
        *((0,) if serves.empty else ()),
    )
    lengths = tuple(pick(edges) for _ in range(int(rng.integers(1, 6))))
    topologies = ("identity", "reversed", "shuffled", "interleaved", "shared", "highest", "flush")
    features = {}
    if wide or rng.random() < 0.5:
        choices = {
            "softcap": float(rng.uniform(2, 30)),
            "alibi": float(rng.uniform(0.1, 1)),
            "window": float(rng.integers(1, 2 * size + 40)),
            "k_scale": 0.5,
            "v_scale": 2.0,
        }
        features = {f: choices[f] for f in serves.features if rng.random() < 0.5}
    setting = Setting(
        dtype=dtype,
        head_size=head,
        group=group,
        kv_heads=int(rng.integers(1, 4)),
        lengths=lengths,
        prefix=size if rng.random() < 0.3 else 0,
        topology=pick(topologies),
        padding=pick(("foreign", "negative", "huge")),
        poison=pick(("", "nan")),
        guard=pick(("after", "before")),
        spare=int(rng.integers(0, 3)),
        features=features,
        seed=seed & 0x7FFFFFFF,
    )
    history = [call()]
    if "prefill" in serves.capabilities:
        history.append(
            call("prefill", queries=[int(rng.integers(min(1, n), min(n, 9) + 1)) for n in lengths])
        )
    blocks = SPARE_BLOCKS + sum(-(-n // size) for n in lengths)
    return Case(
        id=f"random/{seed}",
        aim=(),
        num_blocks=blocks,
        block_size=size,
        history=tuple(history),
        kernel=setting,
        seed=seed,
    )

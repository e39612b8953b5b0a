"""What a kernel case computes with, and the base of all records."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A frozen record; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def short(value: Any) -> str:
    """A field for people: long lists are cut, also those in lists."""
    if not isinstance(value, tuple | list):
        return str(value)
    parts = [repr(v) if isinstance(v, str) else short(v) for v in value]
    return f"[{', '.join(parts if len(parts) <= 16 else [*parts[:12], f'... {len(parts)} in all'])}]"


class Setting(Record):
    """What a call of a kernel computes with; the `args` of an operation replace fields for its call.

    Rows are sequences in order, each `repeat` times. Everything drawn comes from `seed`.
    """

    dtype: str = "fp32"
    """Of the cache; the query has the same, bf16 with fp8_e4m3."""
    head_size: int = 64
    kv_heads: int = 2
    group: int = 4
    """Query heads a KV head."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    queries: tuple[int, ...] = ()
    """Query tokens of each sequence, its last positions (prefill)."""
    repeat: int = 1
    prefix: int = 0
    """Leading tokens that all sequences have in common."""
    rows: tuple[int, ...] = ()
    """Only these rows, in this order; empty for all."""
    part: tuple[int, int] | None = None
    """Only these positions of each sequence; the first is at the start of a block."""
    payload: Literal["random", "coded", "rising", "falling", "spike", "large", "ties"] = "random"
    """ties: new tokens of a write lie halfway between two numbers of fp8, or past its largest."""
    shift: float = 0.0
    """What is added to every score; the queries and keys of two calls that differ in it agree otherwise."""
    probes: Literal["all", "pages"] = "all"
    """Positions that coded queries ask for: every one, or some of every block. The next past the end too."""
    topology: Literal[
        "identity", "reversed", "shuffled", "interleaved", "shared", "highest", "wide", "flush"
    ] = "shuffled"
    spare: int = 2
    """Columns of the table beyond the longest row."""
    table_multiple: int = 1
    """The columns are rounded up to a multiple of this."""
    padding: Literal["foreign", "negative", "huge"] = "foreign"
    """What entries past the end of a row hold: a block of somebody else, -1 and less, or 2^31 - 1."""
    poison: Literal["", "nan", "inf", "-inf"] = ""
    """What lies in all slots that no row may read; empty for large finite values."""
    poisoned: Literal["k", "v", "kv"] = "kv"
    spoilt: tuple[int, ...] = ()
    """Positions of each sequence, counted from its end (1 is the last), that hold NaN; see `poisoned`."""
    guard: Literal["after", "before"] = "after"
    """On which side of each tensor the memory ends."""
    block_size: int = 0
    """Of this call; 0 for the case's."""
    sparse: bool = False
    """The pool is larger than memory: only blocks in use are backed."""
    features: dict[str, float] = Field(default_factory=dict)
    """softcap, window, k_scale, v_scale; alibi: the steepest slope."""
    slots: tuple[int, ...] = ()
    """Of write: where each new token goes."""
    source: str = ""
    """Of write: dtype of the new tokens; empty for the query's."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Of copy_blocks."""
    refuse: str = ""
    """What is wrong with the call, which must be refused."""
    strided: Literal["", "q", "table"] = ""
    """Which tensor has a gap behind each row: it is served, or refused."""
    weights: str = ""
    """The dtype that softmax weights are rounded to before they meet the values; empty for the query's."""
    seed: int = 0

    @property
    def query_dtype(self) -> str:
        return "bf16" if self.dtype == "fp8_e4m3" else self.dtype

    def __str__(self) -> str:
        lengths = short(self.lengths)
        features = "".join(f", {name} {value:g}" for name, value in self.features.items())
        heads = f"{self.kv_heads * self.group} query heads on {self.kv_heads} KV heads of {self.head_size}"
        queries = f", {short(self.queries)} queries" if self.queries else ""
        shape = f"{self.dtype}, {heads}, lengths {lengths}{queries}, {self.topology} table{features}"
        if not self.poison:
            return shape
        where = {"k": "keys", "v": "values", "kv": "keys and values"}[self.poisoned]
        return f"{shape}, {self.poison.replace('nan', 'NaN')} in the {where} of all unused slots"

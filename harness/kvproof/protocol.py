"""The messages between the harness and a program in another process: JSON lines over stdin and stdout.

One request a line, one answer a line, in order: UTF-8, flushed, nothing else on standard output. A program
leaves when its input ends. Names and meanings are those of `kvproof.contract`; the schemas under
`specs/schemas/` are generated from these records.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from kvproof.records import Record

PROTO = 1
"""Number of this protocol; `open` carries it."""

Host = tuple[Literal["host"], int]
Pair = tuple[int | Host, int | Host]
Copies = tuple[Pair, ...]
"""Block copies (source, target) in order; ["host", i] is block i of the host tier."""


class Message(Record):
    """Numbers are numbers and strings are strings: "1", 1.0 and true are no integer."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# ---------------------------------------------------------------- requests


class Open(Message):
    """Make a manager or a scheduler; the one before it is gone. `cache`: false asks for none of prefixes."""

    op: Literal["open"] = "open"
    proto: Literal[1] = 1
    profile: Literal["manager", "scheduler"] = "manager"
    num_blocks: int
    block_size: int
    max_seqs: int | None = None
    max_tokens: int | None = None
    """Budgets of a step; absent for a manager."""
    cache: bool = True


class Plain(Message):
    """A request without arguments."""

    op: Literal[
        "free_blocks", "state", "alloc", "reset_prefix_cache", "selfcheck",
        "has_work", "plan", "preempted", "rejected",
    ]  # fmt: skip


class OfSequence(Message):
    op: Literal["free", "table", "swap_out", "swap_in", "wire"]
    seq: Any


class Start(Message):
    """`keys` (salt, adapter, media) with the capability `keys` only."""

    op: Literal["add", "can_add"]
    seq: Any
    tokens: tuple[Any, ...]
    keys: dict[str, Any] | None = None


class LookUp(Message):
    op: Literal["match", "block_keys"]
    tokens: tuple[Any, ...]
    keys: dict[str, Any] | None = None


class Append(Message):
    op: Literal["append"] = "append"
    seq: Any
    tokens: tuple[Any, ...]


class CanAppend(Message):
    op: Literal["can_append"] = "can_append"
    seq: Any
    n: int


class Commit(Message):
    op: Literal["commit"] = "commit"
    seq: Any
    computed: int


class Fork(Message):
    op: Literal["fork"] = "fork"
    seq: Any
    child: Any


class Truncate(Message):
    op: Literal["truncate"] = "truncate"
    seq: Any
    length: int


class Slots(Message):
    op: Literal["slots"] = "slots"
    seq: Any
    lo: int
    hi: int


class OfBatch(Message):
    op: Literal["batch", "csr", "commit_batch"]
    seqs: tuple[Any, ...]


class AppendBatch(Message):
    op: Literal["append_batch"] = "append_batch"
    seqs: tuple[Any, ...]
    tokens: tuple[Any, ...]


class OfBlock(Message):
    op: Literal["refcount", "retain", "release"]
    block: int


class ReleaseMany(Message):
    op: Literal["release_many"] = "release_many"
    blocks: tuple[int, ...]


class Submit(Message):
    op: Literal["submit"] = "submit"
    rid: Any
    tokens: tuple[Any, ...]
    max_new: Any
    priority: int = 0


class Feed(Message):
    op: Literal["feed"] = "feed"
    tokens: tuple[int, ...]


class OfRequest(Message):
    op: Literal["abort", "output"]
    rid: Any


class Run(Message):
    """Do these requests one after another, and time them: parse all of them before the clock starts."""

    op: Literal["run"] = "run"
    ops: tuple[Request, ...]


Request = Annotated[
    Open | Plain | OfSequence | Start | LookUp | Append | CanAppend | Commit | Fork | Truncate | Slots
    | OfBatch | AppendBatch | OfBlock | ReleaseMany | Submit | Feed | OfRequest | Run,
    Field(discriminator="op"),
]  # fmt: skip
Run.model_rebuild()

# ---------------------------------------------------------------- answers


class Failed(Message):
    """Nothing has changed. Unsupported: the program knows no such request. Internal: its own fault."""

    err: Literal[
        "OutOfBlocks", "Refused", "UnknownSequence", "BadInput", "BadSlots", "Unsupported", "Internal"
    ]
    msg: str = ""


class Done(Message):
    """commit, free, commit_batch, retain, release, release_many, submit, abort."""

    ok: None


class Moved(Message):
    """append, fork, truncate, swap_out, swap_in: the block copies that it took."""

    ok: Copies | None


class Count(Message):
    """add, free_blocks, match, refcount, alloc. `copies`: of an add whose hit ends inside a block."""

    ok: int
    copies: Copies = ()


class Ints(Message):
    """table, slots, append_batch, wire, feed, preempted, output. `copies`: of an append_batch."""

    ok: tuple[int, ...]
    copies: Copies = ()


class Truth(Message):
    """can_add, can_append, reset_prefix_cache, has_work."""

    ok: bool


class Lines(Message):
    """selfcheck: a line for each broken invariant. block_keys: a key in hexadecimal for each full block."""

    ok: tuple[str, ...]


class BatchArrays(Message):
    table: tuple[tuple[int, ...], ...]
    """Rows of one length, padded."""
    num_blocks: tuple[int, ...]
    seq_lens: tuple[int, ...]


class Batch(Message):
    ok: BatchArrays


class CsrArrays(Message):
    indptr: tuple[int, ...]
    indices: tuple[int, ...]
    last_block_len: tuple[int, ...]


class Csr(Message):
    ok: CsrArrays


class Planned(Message):
    """plan: (rid, lo, hi, table) a row."""

    ok: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    copies: Copies = ()


class Rejected(Message):
    """rejected: (rid, reason)."""

    ok: tuple[tuple[int, str], ...]


class Description(Message):
    """What the program says of itself; attributes as in `ManagerOptions`."""

    name: str = ""
    capabilities: tuple[str, ...]
    members: tuple[str, ...] = ()
    """Members that a capability leaves free, such as match, and are there."""
    reserved: tuple[int, ...] = ()
    lookahead: int = 0
    lazy: bool = False
    pad: int = -1
    window: int | None = None
    policy: dict[str, str | int] = Field(default_factory=dict)
    guard: str | int | None = None
    publish: Literal["commit", "free"] = "commit"


class Opened(Message):
    ok: Description


class StateOf(Message):
    """One look instead of many: what free_blocks, table and refcount would answer now."""

    free: int
    tables: dict[str, tuple[int, ...]]
    """Of every live sequence; JSON has no other names than strings."""
    refs: dict[str, int] = Field(default_factory=dict)
    """Of every block that a sequence owns (capability refcount)."""


class State(Message):
    ok: StateOf


class Ran(Message):
    results: tuple[dict[str, Any], ...]
    """The answer to each request, in order."""
    ns: int
    """Nanoseconds from before the first to after the last, on a monotonic clock."""


class RunDone(Message):
    ok: Ran


Answer = (
    Failed | Done | Moved | Count | Ints | Truth | Lines | Batch | Csr | Planned | Rejected | Opened | State
    | RunDone
)  # fmt: skip

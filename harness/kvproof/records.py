"""The records that pass between the rooms and into files: one place for every field name.

spec -> history -> subject -> observation -> check -> result -> report. The JSON Schemas under
`specs/schemas/` are generated from these classes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from kvproof.setting import Record as Record
from kvproof.setting import Setting as Setting
from kvproof.setting import short as short

SPEC_VERSION = "2026.12"


# ---------------------------------------------------------------- specification


class Level(StrEnum):
    MUST = "MUST"
    SHOULD = "SHOULD"


class Requirement(Record):
    """One obligation, with a stable id `KVP-<AREA>-<NNN>`."""

    id: str = Field(pattern=r"^KVP-[A-Z]+-\d{3}$")
    level: Level = Level.MUST
    title: str
    text: str
    why: str
    profile: str
    """manager, scheduler, ranks or kernel: who is judged by it."""
    needs: tuple[str, ...] = ()
    """Capabilities without which it is UNSUPPORTED."""
    chapter: str = ""
    """Section of the chapter it comes from, such as "3.2.1"; empty if the chapter is silent."""
    seen: tuple[str, ...] = ()
    """Real faults: "vllm-project/vllm#42571" or "owner/name: what was seen"."""
    fault: str = ""
    """A fault its tests must kill."""
    status: Literal["active", "planned", "report"] = "active"
    """planned: nobody tests it yet; report: it binds reports of the harness, no implementation is judged."""
    tests: tuple[str, ...] = ()
    """Of a report: the tests of the harness that hold it, "test_replay.py::test_x"."""

    @property
    def area(self) -> str:
        return self.id.split("-")[1]


class Capability(Record):
    """A named part of the contract."""

    name: str
    profile: str
    members: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Members that may be missing though the capability is named."""
    attribute: str = ""
    """Attribute that gives the capability when it is set ("reserved", "policy.evict"); such a
    capability is not named by the subject. Empty for all others."""
    text: str


class Profile(Record):
    """A kind of subject: what it has to offer, and the areas it is judged by."""

    name: str
    factory: str
    """The call that makes a subject."""
    members: tuple[str, ...]
    optional: tuple[str, ...] = ()
    judges: tuple[str, ...]
    """Areas ("POOL") or single requirements ("KVP-POOL-002")."""
    text: str


# ---------------------------------------------------------------- histories


class Operation(Record):
    """One call of a history; fields beyond `op` are that call's arguments.

    op: add, append, append_batch, commit, commit_batch, free, fork, truncate, swap_out, swap_in, table,
    match, block_keys, batch, csr, slots, wire, codec, reset, alloc, retain, release, release_many,
    sizing, reclaim (add `free_blocks() * block_size` fresh tokens and free them again).
    Schedulers: submit, abort, step (length of them), drain (steps until nothing is left).
    Ranks: step (args: operations, faults), form, resume_rank, evict, refuse (args: rank, count).
    Kernels: decode, prefill, write, copy_blocks, replay (decode captured in a graph, then replayed with
    other inputs); `args` are fields of the case's Setting that differ in this call.
    """

    op: str
    seq: Any = None
    tokens: tuple[Any, ...] | None = None
    keys: dict[str, Any] | None = None
    child: Any = None
    computed: int | None = None
    length: int | None = None
    seqs: tuple[Any, ...] | None = None
    lo: int | None = None
    hi: int | None = None
    blocks: tuple[int, ...] | None = None
    """For the raw pool: indices into the list of blocks that this history has allocated."""
    args: dict[str, Any] | None = None
    expect: dict[str, Any] | None = None
    """What must be observed: value, outcome, free, new_blocks; a difference fails the case's aim."""

    def __str__(self) -> str:
        fields = self.model_dump(exclude_none=True, exclude={"op", "expect", "args"}) | (self.args or {})
        return f"{self.op}({', '.join(f'{name}={short(value)}' for name, value in fields.items())})"


class Case(Record):
    """A history, the pool it runs on, and the requirement it aims at."""

    id: str
    aim: tuple[str, ...]
    """Requirements this case judges: they pass if no finding names them."""
    needs: tuple[str, ...] = ()
    num_blocks: int
    """Usable blocks: a subject that reserves ids is made with so many more."""
    block_size: int
    max_seqs: int | None = None
    max_tokens: int | None = None
    """Budgets of a step: a case that has them is about a scheduler."""
    history: tuple[Operation, ...] = ()
    stands_for: tuple[str, ...] = ()
    """Findings of these requirements also count against the aim: the scene defines the aim."""
    pools: tuple[int, ...] = ()
    """Blocks of each rank: a case that has them is about tensor-parallel ranks."""
    kernel: Setting | None = None
    """A case that has one is about a kernel; each operation is one call of it."""
    note: str = ""
    """The class of fault it is after, and what would go wrong."""
    seed: int | None = None
    implementation: str = ""
    """In a saved failure: who showed it. It is replayed there unless another one is named."""

    @property
    def room(self) -> dict[str, int | None]:
        """Pool and budgets, as a `Result` has them."""
        names = ("num_blocks", "block_size", "max_seqs", "max_tokens")
        return {name: getattr(self, name) for name in names}

    @property
    def profile(self) -> str:
        if self.kernel is not None:
            return "kernel"
        if self.pools:
            return "ranks"
        return "manager" if self.max_seqs is None else "scheduler"

    @property
    def shape(self) -> tuple[Any, ...]:
        """Arguments of the factory; ranks also get a network."""
        if self.kernel is not None:
            return ()
        if self.pools:
            return (self.pools, self.block_size)
        if self.max_seqs is None or self.max_tokens is None:
            return (self.num_blocks, self.block_size)
        return (self.num_blocks, self.block_size, self.max_seqs, self.max_tokens)


# ---------------------------------------------------------------- observations

UNWRITTEN = -1
"""In `reads`: a slot that was never written."""
DROPPED = -2
"""In `reads`: a position whose entry a declared window has dropped."""


class Observation(Record):
    """What was seen of the subject during and after one operation."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    outcome: str
    """ok, skipped, OutOfBlocks, Refused, UnknownSequence, BadInput, BadSlots, error, or unserved.
    Kernels also: fault (a sanitizer stopped it), raised (an exception where a refusal is due)."""
    value: Any = None
    detail: str = ""
    """Message of the exception, or the traceback's last lines for `error`."""
    probe: bool | None = None
    """What can_add or can_append said just before."""
    matched: int | None = None
    """What match said just before an add."""
    copies: tuple[tuple[Any, Any], ...] = ()
    free: int | None = None
    tables: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    stale: tuple[int, ...] = ()
    """Sequences whose earlier returned table object was rewritten by this operation."""
    reads: dict[int, tuple[int, ...]] = Field(default_factory=dict)
    """For each live sequence, the write serial found at each computed position."""
    writes: tuple[tuple[int, int, int, int, int], ...] = ()
    """(serial, block, offset, seq, position) written during the operation."""
    refs: dict[int, int] = Field(default_factory=dict)
    selfcheck: tuple[str, ...] = ()


class Finding(Record):
    """Something a check found wrong."""

    requirement: str
    step: int
    """Index of the operation."""
    expected: str
    got: str
    message: str = ""
    slot: tuple[int, int] | None = None
    """(block, offset) that holds what it must not, where one slot tells it."""


# ---------------------------------------------------------------- results


class Verdict(StrEnum):
    """Worst first: a requirement's verdict is the worst of its cases."""

    FAIL = "FAIL"
    TIMEOUT = "TIMEOUT"
    ERROR = "ERROR"
    XPASS = "XPASS"
    XFAIL = "XFAIL"
    PASS = "PASS"
    UNSUPPORTED = "UNSUPPORTED"
    PRECONDITION = "PRECONDITION"
    PLANNED = "PLANNED"
    NOT_RUN = "NOT_RUN"


class Environment(Record):
    """The machine and versions a number or verdict belongs to."""

    kvproof: str
    python: str
    platform: str
    cpu: str
    cores: int
    memory_gib: float
    packages: dict[str, str]
    missing: dict[str, str]
    """What is not here and what does not run for that: {"torch": "kernel profile and rank processes"}."""
    commit: str | None = None
    dirty: bool | None = None
    """The checkout holds changes that are in no commit."""
    gpu: str | None = None
    """Name of the first NVIDIA GPU and its driver."""
    cpu_mhz: float | None = None
    """Clock of the processor when the run began; None: it cannot be read."""
    compiler: str | None = None
    """First line of what the C++ compiler says of itself."""
    copy_gbps: float | None = None
    """Memory bandwidth of one thread that copies, read and written, 10^9 bytes a second; of a benchmark."""
    busy_cores: float | None = None
    """So many cores of the machine were in use when the run began; of a benchmark."""

    def busy(self) -> str:
        """That others were at work when the run began; empty if they hardly were."""
        if (self.busy_cores or 0.0) <= max(0.5, self.cores / 10):
            return ""
        return f"other programs used {self.busy_cores:.1f} of {self.cores} cores when this run began"


class Header(Record):
    """First line of a result file."""

    kind: Literal["header"] = "header"
    schema_version: Literal[1] = 1
    spec: str = SPEC_VERSION
    what: Literal["conformance", "bench"]
    implementation: str
    version: str = ""
    capabilities: tuple[str, ...] = ()
    profile: str = "manager"
    seed: int
    started: str
    command: str
    environment: Environment
    absent: dict[str, str] = Field(default_factory=dict)
    """Of a benchmark: implementation -> why it was not measured."""
    requirements: tuple[Requirement, ...] = ()
    shard: str = ""
    """"2/3" for the second of three parts of a run; empty for a whole one."""
    pairs: str = ""
    """The same in two benchmarks that were measured in turns: process n of a cell in one makes a pair with
    process n in the other. Empty for one that was measured by itself."""


class Judged(Record):
    """One case that was run, before its results; its id and seed are enough to run it again."""

    kind: Literal["case"] = "case"
    id: str
    aim: tuple[str, ...]
    num_blocks: int
    block_size: int
    operations: int
    seed: int | None = None
    note: str = ""


SHORTEST = " (shortest)"
"""Ends the name of a case that was shrunk from the one before it."""


class Result(Record):
    """Verdict of one requirement in one case."""

    kind: Literal["result"] = "result"
    case: str
    requirement: str
    verdict: Verdict
    reason: str = ""
    expected: str = ""
    got: str = ""
    after: str = ""
    """An earlier finding in the same history that this one may follow from."""
    history: tuple[Operation, ...] = ()
    num_blocks: int | None = None
    block_size: int | None = None
    max_seqs: int | None = None
    max_tokens: int | None = None
    """Of a scheduler's case, as there."""
    step: int | None = None
    replay: str = ""
    vector: str = ""
    milliseconds: float = 0.0
    observed: tuple[Observation, ...] = ()
    """What was seen at each operation of a shortest history, for a report that draws it."""
    slot: tuple[int, int] | None = None
    """(block, offset) that holds what it must not."""
    margin: float | None = None
    """Kernels: the largest error of the case over its bound; above 1 is a failure."""


def room_text(
    num_blocks: int | None, block_size: int | None, max_seqs: int | None, max_tokens: int | None
) -> str:
    """The pool of a case and, of a scheduler's, the budget of a step."""
    said = f"{num_blocks} blocks of {block_size} tokens"
    return said if max_seqs is None else f"{said}, steps of up to {max_seqs} requests and {max_tokens} tokens"


class Sample(Record):
    """One measured cell of a benchmark; no number of it is infinite or none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["sample"] = "sample"
    implementation: str
    cell: str
    """Name of the workload, such as decode_step."""
    parameters: dict[str, Any]
    unit: str
    median: float
    low: float
    """25th percentile."""
    high: float
    """75th percentile."""
    rounds: int
    cal: float | None = Field(default=None, gt=0)
    """ns of one turn of the calibration loop around this cell."""
    per_cal: float | None = None
    """median / cal, for times a sequence or a block: comparable between machines."""
    counters: dict[str, float] = Field(default_factory=dict)
    note: str = ""
    processes: tuple[float, ...] = ()
    """Median of each process in `unit`; `median`, `low` and `high` are of these. Empty: one process."""
    cals: tuple[float, ...] = ()
    """`cal` of each of them."""
    floor: float | None = Field(default=None, ge=0)
    """How far apart this cell measured two equal implementations in this run: 0.03 is 3 %."""


class Footer(Record):
    """Last line of a complete result file."""

    kind: Literal["footer"] = "footer"
    complete: bool
    cases: int
    must_run: int
    failed: int
    exit_status: int
    seconds: float
    left_out: dict[str, int] = Field(default_factory=dict)
    """Why the factory refused a shape -> how many of the cases have it."""
    void: str = ""
    """Of a benchmark: why none of its times counts; empty where they do."""


Line = Annotated[Header | Judged | Result | Sample | Footer, Field(discriminator="kind")]
"""One line of a result file."""

"""What a run of the benchmark measures on whom, and in how many processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvproof.bench import traces
from kvproof.bench.kernels import KernelSubject
from kvproof.bench.matrix import APART, ATTENTION, RANKS, STEPPED, Point
from kvproof.bench.subject import Subject

TURN_CREWS = 3
"""Where two versions are compared: equal crews differ by 13 %, however many rounds they have."""


@dataclass(frozen=True)
class Plan:
    """What is measured on whom.

    capacity: of the replayed cache in tokens, 0 for no bound; empty for what each cell has by itself.
    """

    subjects: Sequence[Subject]
    points: Sequence[Point]
    trace: traces.Trace
    capacity: Sequence[int]
    quick: bool
    seed: int
    kernels: Sequence[KernelSubject] = ()
    device: str = "cpu"
    absent: Mapping[str, str] = field(default_factory=dict)
    """Implementation -> why it is not measured."""
    patience: float = 1.0
    """So many times the usual time may a slow implementation take before it is left out, or stopped."""
    shard: tuple[int, int] | None = None
    rounds: int = 1
    """Processes of each implementation for the timed cells; 1: all of them in this one."""
    turn: int = 0
    """Number of this process, where others put several together (`turns`)."""
    share: int = 1
    """So many processes share the least number of rounds of a kernel there; 1: it stands alone."""
    kernel_rounds: int = 1
    """As `rounds`, for kernels, of which a process has all."""

    @property
    def timed(self) -> list[Point]:
        """The cells of managers and schedulers that are timed round by round."""
        return [p for p in self.points if p.cell not in (*APART, *RANKS, *ATTENTION)] if self.subjects else []

    @property
    def stepped(self) -> list[Point]:
        """The cells of ranks in one object."""
        return [p for p in self.points if p.cell in STEPPED] if self.ranked else []

    @property
    def ranked(self) -> set[str]:
        """Who has ranks."""
        return {s.name for s in self.subjects if s.make_ranks is not None}

    @property
    def paired(self) -> bool:
        """Whether another version measures the same in turns with this one."""
        return self.share > 1

    @property
    def crews(self) -> int:
        """Groups of real processes that measure an implementation's ranks; each takes seconds to start."""
        return TURN_CREWS if self.paired else 1 if self.quick else self.rounds

    @property
    def of_kernels(self) -> list[Point]:
        """The cells of kernels."""
        return [p for p in self.points if p.cell in ATTENTION] if self.kernels else []

    @property
    def steps(self) -> int:
        """How often the progress is told of something."""
        synced = [p for p in self.points if p.cell == "ranks_sync"]
        told = len(self.points) - len(synced)
        if self.rounds > 1 and (self.timed or self.stepped):
            told += self.rounds * (len(self.subjects) + 1) - len(self.timed) - len(self.stepped)
        if synced:
            told += self.crews * (len(self.ranked) + (self.crews > 1))
        return told + (self.kernel_rounds - len(self.of_kernels) if self.kernel_rounds > 1 else 0)

    def several(self) -> bool:
        """Whether any of its cells can be measured in several processes."""
        synced = not self.quick and self.ranked and any(p.cell == "ranks_sync" for p in self.points)
        return bool(self.timed or self.stepped or synced or self.of_kernels)

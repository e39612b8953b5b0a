"""Two versions of the same code in turns, so that both meet the same moments of the machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from kvproof.bench import baton, calm, tables
from kvproof.bench.attention_rounds import FASTEST, too_fast
from kvproof.bench.matrix import Point
from kvproof.bench.measure import empty
from kvproof.bench.merged import merge
from kvproof.comparing import LEAST_PAIRS, compare_pairs, undecided
from kvproof.records import Footer, Sample
from kvproof.report.compare import timed
from kvproof.report.results import ResultFile, ResultsError, ResultWriter, read

TURNS = 10
"""So many pairs tell what is the same (`comparing`)."""
LONGEST_S = {False: 300.0, True: 3600.0}
"""For one point in one process, by whether the matrix is the full one, at the usual patience: one that takes
longer hangs, and is ended. The slowest of the quick matrix takes 10 s."""
MORE = 20
"""Turns that are added at most, for the cells that need them: four and more tell a difference, and all of
them leave a cell whose pairs differ by 20 % (one standard deviation) UNCLEAR in 1 comparison of 100."""
SIDES = ("before", "after")
ROOTS = ("src", "harness", "impls", "kernels")
"""Folders of a checkout from which packages are imported, besides itself."""

Key: TypeAlias = tuple[str, str, str]
"""Implementation, cell, parameters as JSON."""


class TurnError(RuntimeError):
    """One of the two versions could not be measured; the message has its last words."""


@dataclass
class Side:
    """One version, with what was measured of it.

    checkout: its packages take the place of the installed ones, and paths of adapters lead into it; None:
        everything as it is here.
    files: of all turns.
    samples: of each point, by the number of the turn.
    """

    name: str
    checkout: Path | None = None
    files: list[ResultFile] = field(default_factory=list)
    samples: dict[Key, dict[int, Sample]] = field(default_factory=dict)

    def start(self, arguments: Sequence[str], turn: int, into: Path) -> subprocess.Popen[str]:
        """A process of `kvproof bench` that waits before each point (`baton`); its files go below `into`.

        Hashes of strings are seeded by the number of the turn, so both versions meet the same ones.
        """
        env = {**os.environ, "PYTHONHASHSEED": str(turn + 1)}
        if self.checkout:
            paths = [str(self.checkout / root) for root in ROOTS]
            paths += [os.path.abspath(p) for p in filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
            env["PYTHONPATH"] = os.pathsep.join(paths)
        command = [sys.executable, "-m", "kvproof.cli", "bench", *arguments]
        command += ["--turn", str(turn), "--quiet", "--results", str(into / self.name)]
        return subprocess.Popen(
            command,
            cwd=self.checkout,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def take(self, turn: int, into: Path, status: int, said: Sequence[str]) -> None:
        """What its process has left, which `said` something and ended with `status`.

        Raises:
            TurnError: that is no result, or not a whole one.
        """
        try:
            file = read(next((into / self.name).rglob("bench.jsonl")))
            whole = file.footer.complete
        except (StopIteration, ResultsError):
            whole = False
        if not whole:
            words = " ".join(said[-3:])
            ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            old = "; that version cannot be measured in turns yet" if "No such option" in words else ""
            raise TurnError(f"{self.name}: its process ended in turn {turn + 1} with {ended}: {words}{old}")
        self.files.append(file)
        for s in file.samples:
            key = s.implementation, s.cell, json.dumps(s.parameters, sort_keys=True)
            self.samples.setdefault(key, {})[turn] = s

    def write(self, folder: Path, pairs: str, complete: bool) -> Path:
        """Write the result file and the report of the whole, or of what there is of it."""
        samples = _whole(self)
        command = shlex.join(["kvproof", *sys.argv[1:]])
        first, failed = self.files[0].header, max(f.footer.failed for f in self.files)
        header = first.model_copy(update={"pairs": pairs, "command": command})
        with ResultWriter(folder / self.name / "bench.jsonl", header) as file:
            for s in samples:
                file.write(s)
            file.close(
                Footer(
                    complete=complete,
                    cases=len(samples),
                    must_run=0,
                    failed=failed,
                    exit_status=1 if failed else 0 if complete and any(s.rounds for s in samples) else 3,
                    seconds=round(sum(f.footer.seconds for f in self.files), 1),
                )
            )
        notes = [f"{s.implementation}, {Point(s.cell, s.parameters)}: {s.note}" for s in samples]
        tables.write(folder / self.name, header, samples, [n for n in notes if ": INVALID" in n], [])
        return file.path


def take(
    before: Path,
    arguments: Sequence[str],
    cells: Sequence[str],
    turns: int,
    folder: Path,
    tell: Callable[[str], None],
    patience: float = 1.0,
) -> list[Path]:
    """Measure both versions in turns, and write what each came to below `folder`.

    In a turn each version has a fresh process, and these two measure the same point one at once after the
    other: a pair. Which of them is first changes from turn to turn. Turns more follow of the cells that are
    UNCLEAR or may differ, and where there are pairs enough, those in which the machine was disturbed
    (`calm`) are left out.

    Args:
        before: checkout of the other version.
        arguments: of `kvproof bench`, without the cells.
        cells: of the matrix; none: all.
        tell: is told each turn before it begins.
        patience: so many times the usual time may a point take.

    Returns:
        The result files of before and after: process n of a cell in one makes a pair with that in the other.

    Raises:
        TurnError: see there. What was measured before is written, as it is if the run is broken off, and can
            be compared if these were all the turns that were asked for.
    """
    sides = Side(SIDES[0], before.resolve()), Side(SIDES[1])
    longest_s = LONGEST_S["--full" in arguments] * patience

    def turn(number: int, some: Sequence[str]) -> None:
        chosen = [*arguments, *_options(some)]
        with tempfile.TemporaryDirectory(prefix="kvproof-") as place:
            into = Path(place)
            order = sides[::-1] if number % 2 else sides
            ends = baton.alternate([partial(side.start, chosen, number, into) for side in order], longest_s)
            for side, (status, said) in zip(order, ends, strict=True):
                side.take(number, into, status, said)

    try:
        _take(sides, cells, turns, turn, tell)
    except (TurnError, KeyboardInterrupt):
        if all(side.files for side in sides):
            _write(sides, turns, folder)
        raise
    return _write(sides, turns, folder)


def _write(sides: Sequence[Side], turns: int, folder: Path) -> list[Path]:
    """Write both, of each point the pairs that count."""
    speed = _quiet(sides)
    for key in _both(sides):
        if kept := _counting(sides, key, turns, speed):
            for side in sides:
                side.samples[key] = {n: side.samples[key][n] for n in kept}
    complete = min(len(side.files) for side in sides) >= turns
    return [side.write(folder, sides[0].files[0].header.started, complete) for side in sides]


def _take(
    sides: Sequence[Side],
    cells: Sequence[str],
    turns: int,
    turn: Callable[[int, Sequence[str]], None],
    tell: Callable[[str], None],
) -> None:
    """The turns that were asked for, and those that are added."""
    for number in range(turns):
        tell(f"turn {number + 1} of {turns}")
        # The first has what is counted and not timed as well.
        some = _timed(sides) if number else cells
        if some or not number:
            turn(number, some)
    most = turns + MORE * (turns >= LEAST_PAIRS)
    for number in range(turns, most):
        again = _again(sides, turns)
        if not again:
            break
        tell(f"turn {number + 1} of at most {most}, {len(again)} of the cells again")
        turn(number, again)


def _timed(sides: Sequence[Side]) -> list[str]:
    """Cells whose times are compared, so far."""
    return sorted({key[1] for key in _both(sides) if _pairs(sides, key)})


def _options(cells: Sequence[str]) -> list[str]:
    return [word for cell in cells for word in ("--cell", cell)]


def _both(sides: Sequence[Side]) -> list[Key]:
    """Points that both versions have."""
    return [key for key in sides[1].samples if key in sides[0].samples]


def _pairs(sides: Sequence[Side], key: Key) -> dict[int, tuple[Sample, Sample]]:
    """The pairs of a point whose times are compared; none where one of them has none."""
    a, b = (side.samples[key] for side in sides)
    found = {n: (a[n], b[n]) for n in sorted(a.keys() & b.keys())}
    return found if all(timed(*pair) for pair in found.values()) else {}


def _quiet(sides: Sequence[Side]) -> float:
    """What the calibration loop takes on the quiet machine."""
    found = [s.cal for side in sides for samples in side.samples.values() for s in samples.values() if s.cal]
    return calm.quiet(found) if found else float("inf")


def _slower(pairs: dict[int, tuple[Sample, Sample]]) -> list[float]:
    """What the more disturbed side of each pair came to (`calm.load`); 0 where the loop was not timed."""
    return [max(calm.load(s.cal or 0.0, s.counters.get("waited", 0.0)) for s in p) for p in pairs.values()]


def _again(sides: Sequence[Side], least: int) -> list[str]:
    """Cells with a point that is not decided by the pairs that count."""
    speed, found = _quiet(sides), set()
    for key in _both(sides):
        if numbers := _counting(sides, key, least, speed):
            before, after = ([side.samples[key][n].median for n in numbers] for side in sides)
            found |= {key[1]} if undecided(compare_pairs(before, after)) else set()
    return sorted(found)


def _counting(sides: Sequence[Side], key: Key, least: int, speed: float) -> list[int]:
    """Numbers of the pairs of a point that count: of many the calmer half at least."""
    pairs = _pairs(sides, key)
    numbers = list(pairs)
    return [numbers[n] for n in calm.chosen(_slower(pairs), max(least, len(pairs) // 2), speed)]


def _whole(side: Side) -> list[Sample]:
    """What the processes of a version came to at each point."""
    every = [s for samples in side.samples.values() for s in samples.values()]
    fastest = max((s.counters.get(FASTEST, 0.0) for s in every), default=0.0)
    found = []
    for key, samples in side.samples.items():
        parts, point = list(samples.values()), Point(key[1], json.loads(key[2]))
        whole = merge(key[0], point, parts[0].unit, parts)
        if whole.rounds and FASTEST in whole.counters and (said := too_fast(parts, fastest)):
            whole = empty(key[0], point, whole.unit, said)
        counters = {name: value for name, value in whole.counters.items() if name != FASTEST}
        found.append(whole.model_copy(update={"counters": counters}))
    return found

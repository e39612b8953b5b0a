"""What differs between two runs, conformance and benchmarks together."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kvproof.comparing import BOUND, LEAST_PROCESSES, Comparison, Difference, change, compare, compare_pairs
from kvproof.records import Sample, Verdict
from kvproof.report.results import ResultFile, ResultsError
from kvproof.report.summary import BAD, summarize
from kvproof.stats import median

EXACT = (
    *("blocks", "hits", "evictions", "refused", "steps", "preemptions", "computed_tokens"),
    *("recomputed_tokens", "bytes", "messages", "depth", "changed_entries", "whole_tables"),
    *("copies", "entries", "freed"),
)
"""Counters that are equal in every run of the same code on the same input."""
COUNTED = {"memory": 0.001, "waste": 0.0}
"""Cells whose median is counted, not timed, and the share by which it may differ all the same: tracemalloc
counts a few objects more or less."""
INEXACT = ("ranks_pressure",)
"""Cells whose counters depend on when a rank is killed."""
WORDS = ("broken", "slower", "changed", "gone", "new", "unclear", "fixed", "faster")
"""What can be said of a difference, the worst first."""
TIMES = ("ns", "us", "ms", "s")
DRIFT = 0.03
"""Where half of all times of two moments differ by more than this, so do the moments, and no time is told:
others then differ by up to a quarter, by chance."""
MANY = 4.5
"""So many times the median difference hold all but 3 in 1,000 differences of equal things: 3 deviations."""
FAMILIES = ("attention", "ranks")
"""Cells whose names begin so are compared among themselves: what they depend on differs more between moments
than what managers do."""
WAITED = 0.1
"""Where the machine had the processor of most rounds for more of their time than this, nothing is told."""
ALONE = 1.25
"""Times of one process are told, as unclear, from here on."""
LEAST_TIMES = 4
"""Fewer times say nothing of the two moments."""

Key: TypeAlias = tuple[str, str, str]
"""Implementation, cell, parameters as JSON."""


@dataclass(frozen=True)
class Item:
    """One line of a comparison."""

    word: str
    text: str
    worse: bool = False
    """A verdict for the worse."""
    gates: bool = False
    """What a gate does not let pass besides."""

    def __str__(self) -> str:
        return f"{self.word:<8}{self.text}"


@dataclass
class Compared:
    """All that differs."""

    notes: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    verdicts: int = 0
    """Requirements whose verdicts differ."""
    times: dict[Key, Comparison] = field(default_factory=dict)
    alone: int = 0
    """Times of one process: UNCLEAR, whatever they are."""
    void: bool = False
    """No time is told: a run was void, or the two moments differ too much."""

    def lines(self) -> list[str]:
        """The items, the worst words first."""
        return [str(item) for item in sorted(self.items, key=lambda item: WORDS.index(item.word))]

    def slower(self, bound: float) -> set[Key]:
        """What is SLOWER by more than `bound`, the whole interval."""
        return {k for k, c in self.times.items() if c.verdict is Difference.SLOWER and c.low > bound}

    def counted(self) -> str:
        """How many times came to which verdict."""
        counts = Counter(c.verdict for c in self.times.values())
        said = ", ".join(f"{counts[d]} {d}" for d in Difference if counts[d])
        return said + (f" ({self.alone} of one process)" if self.alone else "")


def differences(before: Sequence[ResultFile], after: Sequence[ResultFile], bound: float = BOUND) -> Compared:
    """Compare the files of two runs.

    Where each side has one implementation, these two are compared, whatever they are called.

    Raises:
        ResultsError: a run did not end, one side holds the same thing twice, or nothing is in both.
    """
    for file in (*before, *after):
        if not file.footer.complete:
            raise ResultsError(f"{file.path.name}: the run did not end; nothing can be compared with it")
    found = Compared()
    both = [_judged(side) for side in (before, after)]
    measured = [[f for f in side if f.header.what == "bench"] for side in (before, after)]
    if not (all(both) or all(measured)):
        raise ResultsError("nothing to compare: BEFORE and AFTER need a run of one kind in common")
    if all(both):
        _verdicts(both[0], both[1], found)
    if all(measured):
        _benchmarks(measured[0], measured[1], bound, found)
    return found


def _judged(files: Iterable[ResultFile]) -> dict[tuple[str, str], ResultFile]:
    found: dict[tuple[str, str], ResultFile] = {}
    for file in files:
        key = file.header.implementation, file.header.profile
        if file.header.what == "conformance" and found.setdefault(key, file) is not file:
            raise ResultsError(
                f"{file.path}: {' as '.join(key)} is in {found[key].path} too: name one run a side"
            )
    return found


def _named(before: Sequence[str], after: Sequence[str], found: Compared) -> bool:
    """Whether both sides have one implementation, under two names."""
    if len(before) == len(after) == 1 and before != after:
        note = f"two implementations: {before[0]} before, {after[0]} after"
        found.notes += [note] if note not in found.notes else []
        return True
    return False


def _verdicts(
    old: dict[tuple[str, str], ResultFile], new: dict[tuple[str, str], ResultFile], found: Compared
) -> None:
    if len(old) == len(new) == 1:
        _named([k[0] for k in old], [k[0] for k in new], found)
        pairs = [("", next(iter(old.values())), next(iter(new.values())))]
    else:
        pairs = [(f"{key[0]}: ", old[key], new[key]) for key in old if key in new]
        found.items += [Item("gone", f"{' as '.join(k)}: all of it", worse=True) for k in old if k not in new]
        found.items += [Item("new", f"{' as '.join(k)}: all of it") for k in new if k not in old]
    for name, before, after in pairs:
        a, b = summarize(before).verdicts, summarize(after).verdicts
        for key in sorted(set(a) | set(b)):
            if item := _verdict(f"{name}{key}", a.get(key, Verdict.NOT_RUN), b.get(key, Verdict.NOT_RUN)):
                found.verdicts += 1
                found.items.append(item)


def _verdict(name: str, a: Verdict, b: Verdict) -> Item | None:
    if a is b:
        return None
    worse = (b in BAD and a not in BAD) or (a is Verdict.PASS and b is not Verdict.PASS)
    idle = (Verdict.NOT_RUN, Verdict.PLANNED)
    if b in BAD and worse:
        word = "broken"
    elif a in idle or b in idle:
        word = "new" if a in idle else "gone"
    else:
        word = "broken" if worse else "fixed" if b is Verdict.PASS else "changed"
    return Item(word, f"{name}: {a} -> {b}", worse)


def _benchmarks(
    before: Sequence[ResultFile], after: Sequence[ResultFile], bound: float, found: Compared
) -> None:
    names = [
        list(dict.fromkeys(s.implementation for f in side for s in f.samples)) for side in (before, after)
    ]
    renamed = names[0][0] if _named(names[0], names[1], found) else None
    old, new = _samples(before, None), _samples(after, renamed)
    machines = [{(f.header.environment.cpu, f.header.environment.cores) for f in s} for s in (before, after)]
    comparable = machines[0] == machines[1]
    if not comparable:
        found.notes.append("two machines: no difference in time is more than UNCLEAR")
    voids = [f"VOID {f.path.name}: {f.footer.void}" for f in (*before, *after) if f.footer.void]
    found.notes += voids
    for key in old:
        if key not in new:
            found.items.append(Item("gone", _name(key), gates=old[key].rounds > 0))
    pairs: dict[Key, tuple[Sample, Sample]] = {}
    for key, b in new.items():
        a = old.get(key)
        if a is None:
            found.items.append(Item("new", _name(key)))
        elif not (a.rounds and b.rounds):
            _without(key, a, b, found)
        else:
            _exact(key, a, b, found)
            if timed(a, b):
                pairs[key] = a, b
    turns = {f.header.pairs for f in (*before, *after)}
    paired = len(turns) == 1 and turns != {""}
    for key, (a, b) in pairs.items():
        if paired and len(a.processes) != len(b.processes):
            number = f"{len(a.processes)} and {len(b.processes)} processes"
            raise ResultsError(f"{_name(key)}: {number} make no pairs: a file was changed, or cut off")
    _times(pairs, bound, comparable, bool(voids), paired, found)


def timed(a: Sample, b: Sample) -> bool:
    """Whether two samples of a point are times that are compared: not counts, and not the controls that
    kernels are measured beside, which are nobody's implementation.
    """
    is_time = all(s.rounds and s.unit.split("/")[0] in TIMES for s in (a, b))
    return is_time and b.cell not in COUNTED and b.parameters.get("block_size") != "none"


def _samples(files: Sequence[ResultFile], renamed: str | None) -> dict[Key, Sample]:
    found: dict[Key, Sample] = {}
    for file in files:
        for s in file.samples:
            key = renamed or s.implementation, s.cell, json.dumps(s.parameters, sort_keys=True)
            times = (s.median, *s.processes) if s.rounds and s.unit.split("/")[0] in TIMES else ()
            if not all(0 < t < math.inf for t in times) or len(s.cals) not in (0, len(s.processes)):
                raise ResultsError(f"{file.path}: {_name(key)}: allowed are times above 0, with one cal each")
            if found.setdefault(key, s) is not s:
                raise ResultsError(f"{file.path}: {_name(key)} is there twice: name one run a side")
    return found


def _name(key: Key) -> str:
    parameters = ", ".join(f"{k}={v}" for k, v in json.loads(key[2]).items())
    return f"{key[0]} {key[1]}({parameters})"


def _without(key: Key, a: Sample, b: Sample, found: Compared) -> None:
    """At least one of them has no number."""
    states = [s.note if not s.rounds else "a number" for s in (a, b)]
    if a.rounds:
        found.items.append(Item("broken", f"{_name(key)}: a number -> {b.note}", worse=True))
    elif b.rounds:
        found.items.append(Item("fixed", f"{_name(key)}: {a.note} -> a number"))
    elif len({note.startswith("INVALID") for note in states}) > 1:
        worse = b.note.startswith("INVALID")
        found.items.append(
            Item("broken" if worse else "changed", f"{_name(key)}: {a.note} -> {b.note}", worse)
        )


def _exact(key: Key, a: Sample, b: Sample, found: Compared) -> None:
    values: dict[str, tuple[float, float]] = {}
    if key[1] in COUNTED and abs(b.median - a.median) > COUNTED[key[1]] * abs(a.median):
        values[a.unit] = a.median, b.median
    # A replay that time ran out on has counted fewer requests.
    whole = a.counters.get("requests_run") == b.counters.get("requests_run")
    if whole and key[1] not in INEXACT:
        values |= {n: (a.counters[n], b.counters[n]) for n in EXACT if n in a.counters and n in b.counters}
    for name, (x, y) in values.items():
        if x != y:
            found.items.append(Item("changed", f"{_name(key)}: {name} {x:,g} -> {y:,g}", gates=True))


def _times(
    pairs: dict[Key, tuple[Sample, Sample]],
    bound: float,
    comparable: bool,
    void: bool,
    turns: bool,
    found: Compared,
) -> None:
    """Compare times, and say what differs.

    turns: both were measured in turns, so their processes make pairs, and of a pair the moment is the same.
    """
    sides: dict[Key, list[list[tuple[float]]]] = {}
    for key, (a, b) in pairs.items():
        calibrated = bool(a.cal and b.cal) and not turns
        sides[key] = [_normal(a, calibrated), _normal(b, calibrated)]
    drift, drifts = _drifts(sides) if comparable and not turns else (0.0, {})
    if drift > DRIFT:
        found.notes.append(
            f"VOID: half of all times differ by more than {drift:.1%}, allowed are {DRIFT:.0%}: the machine "
            "was busier in one run, or everything has changed; measure both in turns: bench --against"
        )
    found.void = void or drift > DRIFT
    for key, (a, b) in pairs.items():
        both = sides[key]
        if turns and not void:
            result = compare_pairs(*([t for (t,) in side] for side in both), bound=bound)
        else:
            floor = max(a.floor or 0, b.floor or 0, MANY * drifts.get(_family(key), drift))
            result = compare(*([], []) if void else both, floor=floor, bound=bound)
        stood = not turns and max(s.counters.get("waited", 0.0) for s in (a, b)) > WAITED
        if not void and (not comparable or drift > DRIFT or stood):
            result = replace(result, verdict=Difference.UNCLEAR)
        found.times[key] = result
        words = {Difference.SLOWER: "slower", Difference.FASTER: "faster"}
        word = words.get(result.verdict, "")
        alone = not (a.processes and b.processes)
        found.alone += alone
        if result.verdict is Difference.UNCLEAR:
            told = max(ALONE, bound) if alone else bound
            word = "unclear" if change(result.ratio) > told - 1 else ""
        if word:
            text = f"{_name(key)}: {result}, {a.median:.4g} -> {b.median:.4g} {b.unit}"
            found.items.append(Item(word, text))


def _drifts(sides: Mapping[Key, list[list[tuple[float]]]]) -> tuple[float, dict[str, float]]:
    """What half of all times of two moments differ by, and half of those of each family.

    `MANY` times that is the floor of the family: the control within one run does not see that moments differ.
    """
    apart: dict[str, list[float]] = {}
    for key, (before, after) in sides.items():
        if min(len(before), len(after)) >= LEAST_PROCESSES:
            ratio = median([t for (t,) in after]) / median([t for (t,) in before])
            apart.setdefault(_family(key), []).append(change(ratio))
    every = [x for some in apart.values() for x in some]
    drift = median(every) if len(every) >= LEAST_TIMES else 0.0
    return drift, {k: median(some) if len(some) >= LEAST_TIMES else drift for k, some in apart.items()}


def _family(key: Key) -> str:
    """Which times a time is compared among."""
    return next((name for name in FAMILIES if key[1].startswith(name)), "")


def _normal(s: Sample, calibrated: bool) -> list[tuple[float]]:
    """Time of each process; in turns of the calibration loop where both sides have that."""
    times = s.processes or (s.median,)
    cals = s.cals or (s.cal,) * len(times)
    return [(t / c if calibrated and c else t,) for t, c in zip(times, cals, strict=True)]

"""Attention over a paged cache, timed beside a read of memory and beside SDPA on contiguous keys and values.

Points that differ in block size and topology only are one group: their lanes share the memory and
the controls, and their rounds are interleaved.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isinf
from time import perf_counter
from typing import Any

import psutil
import torch
import torch.nn.functional as F  # noqa: N812

from kvproof.bench import cold, gpu_clocks, heap, paged, roofline, stream
from kvproof.bench.clock import calibrate, quiet
from kvproof.bench.inputs import Inputs
from kvproof.bench.kernels import KernelSubject
from kvproof.bench.lanes import CHECKED, Lane, why
from kvproof.bench.matrix import Point
from kvproof.bench.measure import Pedantic, empty, predict
from kvproof.bench.subject import Unsupported
from kvproof.records import Sample
from kvproof.report.patience import MORE
from kvproof.stats import quantiles, ratio_interval

BAR, FOLDED, PROBE = "SDPA", "SDPA folded", "memory"
"""Controls. BAR is torch's SDPA as one calls it, FOLDED the same with the query heads of a KV head as its
query rows, which reads every key once: the fastest that torch has for contiguous keys and values."""
VARIED = ("block_size", "topology")
UNIT = "us/step"
WARM, MIN_ROUNDS, MAX_ROUNDS, SLOW_ROUNDS = 2, 5, 30, 3
SLOW_S = 0.5
"""A step slower than this gets SLOW_ROUNDS rounds."""
PATIENCE, BAR_PATIENCE = 4, 24
"""A lane whose least number of rounds is expected to take so many budgets is left out, with a note."""
ROOM = 3
"""Free memory must hold the cache so many times: a gathered copy and what SDPA makes of it."""


@dataclass(frozen=True)
class Group:
    """Points of one cell that differ in block size and topology only."""

    cell: str
    points: tuple[Point, ...]

    @property
    def shape(self) -> paged.Shape:
        p = self.points[0].parameters
        query_heads, _, kv_heads = p["heads"].partition("/")
        return paged.Shape(
            p["tokens"], p["batch"], int(query_heads), int(kv_heads), p["head_dim"], p["dtype"]
        )

    @property
    def common(self) -> dict[str, Any]:
        return {k: v for k, v in self.points[0].parameters.items() if k not in VARIED}

    def __str__(self) -> str:
        return str(Point(self.cell, self.common))


def groups(points: Sequence[Point]) -> list[Group]:
    """The points by everything but block size and topology, in their order."""
    found: dict[tuple[str, str], list[Point]] = {}
    for p in points:
        key = (p.cell, str({k: v for k, v in p.parameters.items() if k not in VARIED}))
        found.setdefault(key, []).append(p)
    return [Group(cell, tuple(some)) for (cell, _), some in found.items()]


@dataclass
class AttentionJob:
    """What is measured on whom; has the two members by which the timed run is driven."""

    subjects: Sequence[KernelSubject]
    points: Sequence[Group]
    budget_s: float
    """For the rounds of one lane in one group, in all processes."""
    emit: Callable[[Sample], None]
    started: Callable[[Group], None] = lambda _: None
    device: str = "cpu"
    seed: int = 0
    bandwidth: float = 0.0
    """Bytes a second, the fastest round of the probe so far."""
    costs: dict[tuple[str, str], dict[int, float]] = field(default_factory=dict)
    turn: int = 0
    """By which the order of the lanes is rotated, another in each group."""
    patience: float = 1.0
    """So many times as much as usual may a slow lane take before it is left out."""
    processes: int = 1
    """So many measure the same, and share the budget and the least number of rounds."""
    own_s: float | None = None
    """For the rounds of one lane in this process; None: its share of the budget."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Implementation and point of a lane -> why it is known to have no number, so that it is not run."""
    behind: Sequence[float] = ()
    """Seconds of each round behind the sample that is emitted."""
    cal: float | None = None
    """Turn of the calibration loop around this group, ns; not on a GPU, whose time is its own."""
    probed: tuple[str, int, Callable[[], Any]] | None = None
    """The probe of memory, made once."""
    clocks: gpu_clocks.Clocks | None = None
    """Opened at the first group."""
    flush: cold.Flush | None = None
    """On a GPU."""

    def measure(self, group: Group, pedantic: Pedantic) -> None:
        """Measure one group; emits a sample for each lane, also when there is no number."""
        self.started(group)
        self.turn, self.behind = self.turn + 1, ()
        shape = group.shape
        turns = roofline.rotations(shape.kv_bytes, self.device)
        needed, free = ROOM * shape.kv_bytes * turns, _free(self.device)
        if needed > free:
            note = f"unsupported: left out: needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} are free"
            for point in group.points:
                for s in self.subjects:
                    self.emit(empty(s.name, point, UNIT, note))
            return
        self.clocks = self.clocks or gpu_clocks.opened(self.device)
        if self.device == "cuda":
            self.flush = self.flush or cold.Flush(self.device, roofline.cache_bytes(self.device))
        memory = paged.fill(shape, turns, self.device, self.seed)
        if self.device == "cpu":  # room for a gathered copy, one whose KV heads are repeated, and gaps
            copies = shape.kv_bytes * (1 + shape.query_heads // shape.kv_heads) + 2**28
            heap.keep_freed(min(copies, free - needed))
        size = (shape.batch, shape.query_heads, shape.head_dim)
        # Filled before each round; two sets at least, so that a round does not follow one of its own.
        queries = [
            torch.zeros(size, dtype=shape.query_dtype, device=self.device) for _ in range(max(2, turns))
        ]
        lanes = [self._probe(group), *self._controls(group, memory, queries)]
        for point in group.points:
            lanes += self._contenders(group, point, memory, queries)
        for lane in lanes:
            self._warm_up(lane, group, len(queries))
        running = [lane for lane in lanes if lane.body is not None]
        before = calibrate()
        with quiet():
            self._run(running, shape, len(queries), pedantic)
        self.cal = (before + calibrate()) / 2 if self.device == "cpu" else None
        self._report(lanes, group)

    def _probe(self, group: Group) -> Lane:
        self.probed = self.probed or roofline.probe(self.device)
        name, size, call = self.probed
        point = Point(group.cell, {**group.common, "block_size": "none", "topology": name})
        return Lane(PROBE, point, size, lambda _: call())

    def _controls(self, group: Group, memory: paged.Memory, queries: list[torch.Tensor]) -> list[Lane]:
        """SDPA on contiguous keys and values; not for fp8, which it does not take."""
        s = memory.shape
        if s.dtype == "fp8_e4m3":
            return []
        point = Point(group.cell, {**group.common, "block_size": "none", "topology": "contiguous"})
        size = s.moved(0)

        def bar(turn: int) -> torch.Tensor:
            k, v = memory.contiguous(turn % memory.rotations)
            return F.scaled_dot_product_attention(queries[turn][:, :, None], k, v, enable_gqa=True)[:, :, 0]

        def folded(turn: int) -> torch.Tensor:
            k, v = memory.contiguous(turn % memory.rotations)
            q = queries[turn].view(s.batch, s.kv_heads, -1, s.head_dim)
            return F.scaled_dot_product_attention(q, k, v).reshape(queries[turn].shape)

        inputs = Inputs(memory, queries)
        lanes = [Lane(BAR, point, size, bar, inputs)]
        if s.query_heads != s.kv_heads:
            lanes.append(Lane(FOLDED, point, size, folded, inputs))
        return lanes

    def _contenders(
        self, group: Group, point: Point, memory: paged.Memory, queries: list[torch.Tensor]
    ) -> list[Lane]:
        s, device = memory.shape, self.device
        block, topology = point.parameters["block_size"], point.parameters["topology"]
        found = paged.tables(topology, s, memory.rotations, block, device, self.seed)
        lengths = torch.full((s.batch,), s.tokens, dtype=torch.int32, device=device)
        size = s.moved(found[0].shape[1])
        inputs = Inputs(memory, queries, found, block)
        lanes = []
        for subject in self.subjects:
            limit = subject.refuses(
                {
                    "dtype": s.dtype,
                    "block_size": block,
                    "head_size": s.head_dim,
                    "group": s.query_heads // s.kv_heads,
                    "device": device,
                },
                found[0].shape[1],
            )
            layout = subject.kernel.layout
            lane = Lane(subject.name, point, size, lambda _: None, inputs, layout)
            lane.prepared, lane.lse = "prepare" in subject.capabilities, "lse" in subject.capabilities
            lane.graph, lane.note = "graph" in subject.capabilities, f"unsupported: {limit}" if limit else ""
            if not limit:
                caches, scale = memory.cache(layout, block), s.head_dim**-0.5
                try:
                    steps = [subject.bound(queries[0], caches, t, lengths, scale) for t in found]
                    lane.call = _step(steps, queries)
                except Exception as e:
                    lane.note = why(e)
            lanes.append(lane)
        return lanes

    def _warm_up(self, lane: Lane, group: Group, turns: int) -> None:
        """Run a lane twice, check all of the first answer, and decide how many rounds its budget allows."""
        lane.note = lane.note or self.notes.get(f"{lane.name}, {lane.point}", "")
        if lane.note:
            return
        step = {k: v for k, v in group.common.items() if k != "tokens"}
        costs = self.costs.setdefault((lane.name, str(step)), {})
        tokens, warm = group.shape.tokens, self._share(WARM)
        budget = self.own_s or self.budget_s / self.processes
        usual = self.budget_s * (BAR_PATIENCE if lane.name in (BAR, FOLDED) else PATIENCE)
        try:
            # Another block size or order of this group tells as well, and shorter sequences do.
            ahead = costs.get(tokens) or (predict(costs, tokens) if lane.name != PROBE else 0.0)
            if ahead * (WARM + SLOW_ROUNDS) > usual * self.patience:
                what = f"a step of {tokens:,} tokens takes about {ahead:.2g} s"
                raise Unsupported(
                    f"left out: {what}; {MORE} {ceil(ahead * (WARM + SLOW_ROUNDS) / usual)} times it"
                )
            own = 1 if lane.name == PROBE else turns
            assert self.clocks is not None
            lane.body = stream.body(lane.call, own, self.device, lane.graph, self.clocks.read)
            took = 0.0
            for n in range(WARM):
                # The first call may compile or load something; only the first process says what is too slow.
                if n >= warm and took > budget and isinf(self.patience):
                    break
                lane.renew(turns, self.device)
                start = perf_counter()
                outputs, seconds, _ = lane.body()
                took = perf_counter() - start
                if self.processes == 1:  # several compare what counts: their rounds
                    lane.check(group.shape, outputs, part=(0, 1) if n == 0 else None)
            costs[tokens] = took if seconds is None else seconds
            least = self._share(SLOW_ROUNDS if took > SLOW_S else MIN_ROUNDS)
            lane.rounds = max(least, min(MAX_ROUNDS, int(budget / took)))
            if self.flush is not None and lane.inputs is not None and lane.inputs.memory.rotations > 1:
                lane.cold = cold.measure(lane.call, turns, lane.graph, self.flush)
        except Exception as e:
            lane.body, lane.note = None, why(e)

    def _share(self, rounds: int) -> int:
        """Of these rounds, one at least, this process's."""
        return ceil(rounds / self.processes)

    def _run(self, lanes: list[Lane], shape: paged.Shape, turns: int, pedantic: Pedantic) -> None:
        """One pedantic benchmark whose rounds go round the lanes; a slow lane's few are spread over all."""
        most = max(lane.rounds for lane in lanes)
        order: list[Lane] = []
        for n in range(most):
            at = (n + self.turn) % len(lanes)
            order += [x for x in lanes[at:] + lanes[:at] if (n + 1) * x.rounds // most > n * x.rounds // most]
        waiting = iter(order)
        # All of an answer is compared after a round that no kernel can foresee, and after the last of all; of
        # several processes each compares a part of one.
        wholly = {id(lane): {1 + secrets.randbelow(lane.rounds)} for lane in lanes}
        for lane in lanes if self.processes == 1 else ():
            wholly[id(lane)].add(lane.rounds)
        before = {id(lane): lane.begun for lane in lanes}
        part = self.turn % self.processes, self.processes

        def setup() -> tuple[tuple[Lane], dict[str, Any]]:
            lane = next(waiting)
            if lane.body is not None:
                lane.renew(turns, self.device)
            return (lane,), {}

        def timed(lane: Lane) -> None:
            if lane.body is not None:
                try:
                    lane.result = lane.body()
                except Exception as e:
                    lane.body, lane.note = None, why(e)

        told: list[stream.Round | None] = []

        def check(lane: Lane) -> None:
            told.append(None)
            if lane.body is not None and lane.result is not None:
                outputs, told[-1], lane.result = lane.result.outputs, lane.result._replace(outputs=[]), None
                try:
                    whole = lane.begun - before[id(lane)] in wholly[id(lane)]
                    lane.check(shape, outputs, self._share(CHECKED), part if whole else None)
                except Exception as e:
                    lane.body, lane.note = None, why(e)

        wall: list[float] = pedantic(timed, setup=setup, teardown=check, rounds=len(order))
        kept: list[gpu_clocks.Reading] = []
        for lane, seconds, answer in zip(order, wall, told, strict=True):
            reading = answer.clocks if answer else None
            if reading is not None and reading.throttled:
                lane.throttled.append(reading.throttled)
                continue
            lane.seconds.append(seconds if answer is None or answer.seconds is None else answer.seconds)
            if reading is not None:
                kept.append(reading)
                lane.clocks.append(reading)
        void = gpu_clocks.drifted(kept)
        for lane in lanes:
            if lane.throttled and not lane.note and len(lane.seconds) < min(lane.rounds, SLOW_ROUNDS):
                whole = len(lane.seconds) + len(lane.throttled)
                lane.note = f"INVALID: {len(lane.throttled)} of {whole} rounds throttled: {lane.throttled[0]}"
            lane.note = lane.note or (f"INVALID: void: {void}" if void else "")

    def _report(self, lanes: list[Lane], group: Group) -> None:
        by_name = {lane.name: lane for lane in lanes[:3] if lane.seconds and not lane.note}
        if PROBE not in by_name:
            why_not = f"INVALID: the rate of memory is not known: {lanes[0].note or 'no round of its probe'}"
            for lane in lanes[1:]:
                self.emit(empty(lane.name, lane.point, UNIT, lane.note or why_not))
            return
        probe = by_name[PROBE]
        self.bandwidth = max(self.bandwidth, probe.bytes / min(probe.seconds))
        here = probe.bytes / quantiles(probe.seconds)[1]
        for lane in lanes:
            if lane is not probe:
                sample = self._sample(lane, by_name, here)
                self.behind = lane.seconds if sample.rounds else ()
                self.emit(sample)

    def _sample(self, lane: Lane, controls: dict[str, Lane], here: float) -> Sample:
        if lane.note or not lane.seconds:
            return empty(lane.name, lane.point, UNIT, lane.note)
        low, median, high = quantiles([s * 1e6 for s in lane.seconds])
        floor = lane.bytes / self.bandwidth * 1e6
        if self.processes == 1 and median * roofline.SLACK < floor:  # several know the fastest of them all
            note = f"INVALID: {median:.3g} us, the bytes alone take {floor:.3g} us as fast as memory was read"
            return empty(lane.name, lane.point, UNIT, note)
        told = lane.cold.wrong(median / 1e6, self.flush, self.bandwidth) if lane.cold and self.flush else ""
        if told:
            return empty(lane.name, lane.point, UNIT, f"INVALID: {told}")
        counters = {
            "gbps": lane.bytes / median / 1e3,
            "memory_gbps": here / 1e9,
            "roofline": lane.bytes / median * 1e6 / here,
            "error": lane.error,
        }
        counters |= {"fastest_gbps": self.bandwidth / 1e9} if self.processes > 1 else {}
        for name, key in ((BAR, "ratio"), (FOLDED, "ratio_folded")):
            bar = controls.get(name)
            if bar is not None and bar is not lane:
                ratio = ratio_interval(lane.seconds, bar.seconds)
                counters |= dict(zip((key, f"{key}_low", f"{key}_high"), ratio, strict=True))
        notes = [w for w, on in (("prepared outside the time", lane.prepared),) if on]
        if self.device == "cuda":
            counters |= self._device_counters(lane)
            if not lane.graph:
                notes.append("launched call by call: it cannot be captured")
            if lane.throttled:
                notes.append(f"{len(lane.throttled)} rounds thrown out: {lane.throttled[0]}")
            if not lane.clocks:
                absent = self.clocks.absent if self.clocks else ""
                notes.append(f"clocks and throttling not known: {absent or 'they could not be read'}")
        return Sample(
            implementation=lane.name,
            cell=lane.point.cell,
            parameters=lane.point.parameters,
            unit=UNIT,
            median=median,
            low=low,
            high=high,
            rounds=len(lane.seconds),
            cal=self.cal,
            counters=counters,
            note="; ".join(notes),
        )

    def _device_counters(self, lane: Lane) -> dict[str, float]:
        """Clocks and the share of rounds thrown out, where known; warm and flushed times, where taken."""
        found = gpu_clocks.counters(lane.clocks)
        if lane.clocks:
            found["discarded"] = len(lane.throttled) / (len(lane.throttled) + len(lane.seconds))
        if lane.cold is not None:
            found |= {"warm_us": lane.cold.warm * 1e6, "flushed_us": lane.cold.flushed * 1e6}
        return found


def _step(steps: Sequence[Callable[[Any], Any]], queries: Sequence[torch.Tensor]) -> stream.Call:
    return lambda turn: steps[turn % len(steps)](queries[turn])


def _free(device: str) -> int:
    # What the groups before have left behind is free too.
    if device == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])
    heap.give_back()
    return int(psutil.virtual_memory().available)

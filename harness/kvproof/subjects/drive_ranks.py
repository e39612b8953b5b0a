"""Runs a history on a group of ranks: every rank writes the KV of a step and reads all of it back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvproof.contract import ContractError, Diverged, RankGone, RankLost, UnknownSequence
from kvproof.histories.play import link
from kvproof.records import UNWRITTEN, Case, Observation, Operation
from kvproof.subjects.drive import Clock, Nonsense, describe, integer, integers, outcome_of
from kvproof.subjects.network import Hung, SimulatedNetwork
from kvproof.subjects.rank_processes import ProcessNetwork

Net = SimulatedNetwork | ProcessNetwork


class RankDriver:
    """One group, its network, and the KV memory of each rank."""

    def __init__(self, group: Any, case: Case, network: Net, clock: Clock) -> None:
        self.group, self.network, self.clock = group, network, clock
        self.block_size = case.block_size
        self.capabilities = frozenset(group.capabilities)
        world = len(case.pools)
        self.memory: list[dict[tuple[int, int], int]] = [{} for _ in range(world)]
        self.epochs = [0] * world
        self.tokens: list[dict[int, list[int]]] = [{} for _ in range(world)]
        """By rank: tokens of each sequence after the steps that took effect there."""
        self.named: set[int] = set()
        self.last: tuple[tuple[Any, ...], ...] = ()
        """Operations of the last step that the group may have begun."""
        self.results: list[Any] = []
        self.steps: dict[int, tuple[tuple[tuple[Any, ...], ...], list[Any]]] = {}
        """By epoch: operations and answers of the step that led there."""
        self.apart = False
        """A rank was lost, and the group was not formed again yet."""
        self.open = False
        """Whether the last decision took effect everywhere or nowhere is not known."""

    def apply(self, index: int, op: Operation) -> Observation:
        args = op.args or {}
        self.network.arm(args.get("faults", ()))
        value: dict[str, Any] = {"results": None, "lost": []}
        outcome, detail = "ok", ""
        try:
            with self.clock(index):
                value["results"] = self._call(op, args)
        except RankLost as error:
            outcome, detail = "RankLost", str(error)
            value["lost"] = list(integers(error.ranks, "RankLost.ranks"))
        except Diverged as error:
            outcome, detail = "Diverged", str(error)
            self.apart = False
        except RankGone as error:
            outcome, detail = "RankGone", str(error)
        except Hung as error:
            outcome, detail = "hung", str(error)
        except ContractError as error:
            outcome, detail = outcome_of(error), str(error)
            self.apart = False
        except (Exception, SystemExit) as error:
            outcome, detail = "error", str(error) if isinstance(error, Nonsense) else describe(error)
        if op.op in ("step", "form") and outcome not in ("RankLost", "RankGone", "Diverged"):
            self.open = False
        if outcome not in ("error", "hung"):
            try:
                with self.clock(index):
                    value |= self._traffic("drawn" in args)
                    self.network.arm(())
                    value["state"] = self._observe()
            except (Exception, SystemExit) as error:
                outcome, detail = "error", str(error) if isinstance(error, Nonsense) else describe(error)
        value |= {"dead": sorted(self.network.dead), "stopped": sorted(self.network.stopped)}
        return Observation.model_construct(outcome=outcome, detail=detail, value=value)

    def _call(self, op: Operation, args: dict[str, Any]) -> Any:
        if op.op == "step":
            operations = tuple(tuple(o) for o in args.get("operations", ()))
            self.named |= {o[1] for o in operations if len(o) > 1 and type(o[1]) is int and o[1] >= 0}
            if not self.open:
                self.network.begin()
            self.open = True
            if not self.apart:
                self.last, self.results = operations, []
            self.apart = True
            answers = list(self.group.step(list(operations)))
            self.apart = False
            if len(answers) != len(operations):
                raise Nonsense(f"step answered {answers!r:.80} to {len(operations)} operations")
            self.results = [None if r is None else integer(r, "step") for r in answers]
            return self.results
        if op.op == "form":
            self.group.form()
            self.apart = False
        elif op.op == "resume_rank":
            self.network.resume(args["rank"])
        elif op.op == "refuse":
            self.group.refuse(args["rank"])
        elif op.op == "evict":
            for block in integers(self.group.evict(args["rank"], args["count"]), "evict"):
                for offset in range(self.block_size):
                    self.memory[args["rank"]].pop((block, offset), None)
        return None

    # ------------------------------------------------------------ what is seen

    def _traffic(self, drawn: bool) -> dict[str, Any]:
        """Of the operation that ends: who has heard of whom, messages and bytes; `drawn`: information too."""
        network = self.network
        seen: dict[str, Any] = {
            "heard": network.heard(),
            "messages": network.messages,
            "bytes": network.bytes,
        }
        if drawn:
            seen["told"] = {r: network.told(r) for r in range(len(self.memory)) if network.running(r)}
        return seen

    def _observe(self) -> dict[int, Any]:
        state = {}
        for rank in range(len(self.memory)):
            if not self.network.running(rank):
                continue
            epoch = integer(self.group.epoch(rank), "epoch")
            tables: dict[int, list[int]] = {}
            for seq in sorted(self.named):
                try:
                    tables[seq] = list(integers(self.group.table(rank, seq), f"table({rank}, {seq})"))
                except UnknownSequence:
                    continue
            views: dict[int, Any] = {}
            for reached in range(self.epochs[rank] + 1, epoch + 1):
                step = self.steps.setdefault(reached, (self.last, self.results))
                views = self._compute(rank, tables, *step)
            self.epochs[rank] = epoch
            state[rank] = {
                "epoch": epoch,
                "digest": bytes(self.group.digest(rank)).hex(),
                "free": integer(self.group.free_blocks(rank), "free_blocks"),
                "lost": sorted(integers(self.group.lost(rank), "lost")),
                "tables": tables,
                "views": views,
                "reads": {
                    seq: self._read(rank, table, len(self.tokens[rank].get(seq, ())))
                    for seq, table in tables.items()
                    if table
                },
            }
        return state

    def _compute(
        self,
        rank: int,
        tables: dict[int, list[int]],
        operations: tuple[tuple[Any, ...], ...],
        answers: list[Any],
    ) -> dict[int, Any]:
        """A step took effect here: write the KV of what it computes; what reached the rank."""
        views: dict[int, Any] = {}
        for operation, result in zip(operations, [*answers, *[None] * len(operations)], strict=False):
            name, seq = operation[0], operation[1]
            tokens = self.tokens[rank].setdefault(seq, [])
            before = 0 if name in ("add", "resume") else len(tokens)
            if name == "free":
                self.tokens[rank].pop(seq, None)
                continue
            if name in ("add", "append"):
                tokens += operation[2]
            if name == "preempt" or seq not in tables:
                continue
            start, came = int(result or before), tokens[int(result or before) :]
            if "worker_view" in self.capabilities:
                seen, got = self.group.view(rank, seq)
                start, came = integer(seen, "view"), list(integers(got, "view"))
                views[seq] = [start, came]
            self._write(rank, tables[seq], start, came)
        return views

    def _write(self, rank: int, table: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        """Each KV follows from what the rank reads at the position before."""
        last = self._slot(rank, table, start - 1) if start > 0 else 0
        for position, token in enumerate(tokens, max(start, 0)):
            last = link(last, token)
            if position // self.block_size < len(table):
                place = table[position // self.block_size], position % self.block_size
                self.memory[rank][place] = last

    def _read(self, rank: int, table: Sequence[int], length: int) -> list[int]:
        return [self._slot(rank, table, p) for p in range(min(length, len(table) * self.block_size))]

    def _slot(self, rank: int, table: Sequence[int], position: int) -> int:
        if position // self.block_size >= len(table):
            return UNWRITTEN
        place = table[position // self.block_size], position % self.block_size
        return self.memory[rank].get(place, UNWRITTEN)


def drive_ranks(group: Any, case: Case, clock: Clock, network: Net) -> Iterator[Observation]:
    """Observations of a history of ranks, in order; stops after an `error` or a hang."""
    driver = RankDriver(group, case, network, clock)
    for index, op in enumerate(case.history):
        seen = driver.apply(index, op)
        yield seen
        if seen.outcome in ("error", "hung"):
            return

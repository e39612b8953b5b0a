"""Judges a group of ranks: what each step did on every rank, and what became of faults."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.checks.first import first_of_each
from kvproof.histories.play import chain
from kvproof.oracle.ranks import RankModel, State, structure
from kvproof.records import Case, Finding, Observation

LESS = 1.5
"""A step with long tables may take so many times the bytes of the same step with short ones, and SLACK."""
SLACK = 32


def judge_ranks(case: Case, observations: Sequence[Observation]) -> list[Finding]:
    """Findings in order of operation, the first of each requirement."""
    judging = _Group(case, RankModel(case.pools, case.block_size))
    findings = (f for index, seen in enumerate(observations) for f in judging.findings(index, seen))
    return first_of_each(case, findings)


@dataclass
class _Group:
    case: Case
    model: RankModel
    index: int = 0
    evicted: bool = False
    refusing: frozenset[int] = frozenset()
    """Ranks that must refuse the next step."""
    may_refuse: int = 0
    """Refusals that were asked for and not seen yet."""
    digest: str = ""
    """The group's, after the last step that took effect."""
    short: int | None = None
    """Bytes of the step that is measured with short tables."""
    unwell: set[int] = field(default_factory=set)
    """Members that are dead or stopped."""
    named: frozenset[int] = frozenset()
    """Ranks lost since the group was formed."""
    driver: int = 0
    """Of the last decision that was begun."""
    before: dict[int, Any] = field(default_factory=dict)
    """State of each rank after the operation before."""

    def finding(self, requirement: str, expected: str, got: str) -> Finding:
        return Finding(requirement=f"KVP-{requirement}", step=self.index, expected=expected, got=got)

    def findings(self, index: int, seen: Observation) -> Iterator[Finding]:
        self.index, model = index, self.model
        op, value = self.case.history[index], seen.value
        args = op.args or {}
        model.faulty |= bool(args.get("faults"))
        if seen.outcome == "hung":
            yield self.finding("TP-005", f"{op.op} ends, with an error that names who is lost", seen.detail)
            return
        if seen.outcome == "error":
            return
        self.evicted |= op.op == "evict"
        if op.op == "refuse":
            self.refusing, self.may_refuse = self.refusing | {args["rank"]}, self.may_refuse + 1
        state = {r: s for r, s in value["state"].items() if r in model.members}
        if op.op == "step" and not self.named:
            self.driver = min(model.members, default=0)
        yield from self._heard(state, value["heard"])
        if op.op == "step":
            yield from self._step(seen, args, state)
        elif op.op == "form":
            yield from self._formed(seen, state)
        else:
            yield from self._settled(state)

    # ------------------------------------------------------------ messages

    def _heard(self, state: dict[int, Any], heard: dict[int, list[int]]) -> Iterator[Finding]:
        """TP-009: a rank's state changes only behind a message that leads back to the driver of the step."""
        before, self.before = self.before, state
        if self.index == 0:
            before = {rank: {**one, "epoch": 0, "tables": {}} for rank, one in state.items()}
        for rank, one in state.items():
            if rank == self.driver or rank not in before or self.driver in heard[rank]:
                continue
            changed = [n for n in ("epoch", "tables", "digest") if one[n] != before[rank][n]]
            if changed:
                text = f"rank {rank} as it was: no message that comes from rank {self.driver} has reached it"
                yield self.finding("TP-009", text, f"another {changed[0]}: {one[changed[0]]}")

    def _told(
        self, operations: Sequence[Sequence[Any]], args: dict[str, Any], value: dict[str, Any]
    ) -> Iterator[Finding]:
        """TP-009: the driver has heard from all, and what all were told can hold the decision."""
        silent = self.model.members - set(value["heard"][self.driver])
        if silent:
            text = f"an answer of every rank, before the step is done, to rank {self.driver}"
            yield self.finding("TP-009", text, f"nothing came from {sorted(silent)}")
        least = len(operations) * math.log2(args.get("drawn", 1)) / 8
        for rank in sorted(self.model.members - {self.driver}):
            told = value.get("told", {}).get(rank, least)
            if told < least:
                text = f"{least:.0f} bytes of information about {len(operations)} sequences for rank {rank}"
                yield self.finding("TP-009", text, f"{told}")

    # ------------------------------------------------------------ steps

    def _step(self, seen: Observation, args: dict[str, Any], state: dict[int, Any]) -> Iterator[Finding]:
        model, value = self.model, seen.value
        operations = args.get("operations", ())
        after = model.applied(operations)
        before, self.unwell = self.unwell, model.members & {*value["dead"], *value["stopped"]}
        unwell = frozenset(self.unwell)
        if seen.outcome in ("RankLost", "RankGone"):
            self.refusing = frozenset()
            yield from self._lost(seen, args, state, unwell)
            if not self.named:
                model.after = None if isinstance(after, str) else after
            self.named |= unwell | set(value["lost"])
            return
        if self.named:
            got = f"a step after the loss of {sorted(self.named)}: {seen.outcome}"
            yield self.finding("TP-005", "an error until the group is formed again", got)
        if isinstance(after, str):
            if seen.outcome == "ok":
                yield self.finding("TP-003", f"an error that names what is wrong: {after}", "it succeeded")
            yield from self._settled(state)
            return
        if seen.outcome == "ok":
            if before & model.members:
                yield self.finding(
                    "TP-005", f"an error that names {sorted(before & model.members)}", "it succeeded"
                )
            if self.refusing & model.members:
                yield self.finding("TP-003", "one rank refuses: no rank has the step", "it succeeded")
            model.state, model.epoch = after, model.epoch + 1
            yield from self._told(operations, args, value)
            yield from self._bytes(args, value)
            yield from self._answers(operations, value, state)
            yield from self._settled(state, changed=bool(operations))
            return
        if seen.outcome == "Refused":
            self.refusing = frozenset()
        if seen.outcome == "Diverged" and self._blame("") == "":
            yield self.finding("TP-002", "ranks that agree", f"Diverged: {seen.detail}")
        elif self.may_refuse and seen.outcome == "Refused" and model.fits(after):
            self.may_refuse -= 1
        elif seen.outcome != "Diverged" and model.fits(after):
            got = f"{seen.outcome}: {seen.detail}"
            yield self.finding("TP-001", f"a step that fits {model.capacity} blocks on each rank", got)
        yield from self._settled(state)

    def _lost(
        self, seen: Observation, args: dict[str, Any], state: dict[int, Any], unwell: frozenset[int]
    ) -> Iterator[Finding]:
        """TP-005: who is dead or stuck is named on every survivor; nobody else is, without a reason."""
        named = set(seen.value["lost"])
        if seen.outcome == "RankLost" and not unwell and not args.get("faults") and not self.named:
            yield self.finding("TP-005", "every rank answers: no rank is lost", seen.detail)
        if seen.outcome == "RankLost" and not self.named and not unwell <= named:
            yield self.finding("TP-005", f"an error that names {sorted(unwell)}", seen.detail)
        # Without a driver nobody tells of a second loss.
        driver = sorted(self.model.members)[:1]
        known = unwell & set(driver) if seen.outcome == "RankGone" else unwell
        for rank, one in state.items():
            if rank not in named and not known <= set(one["lost"]):
                text = f"rank {rank} holds {sorted(known)} for lost"
                yield self.finding("TP-005", text, f"{one['lost']}")
        for rank, one in state.items():
            if one["epoch"] not in (self.model.epoch, self.model.epoch + 1):
                text = f"rank {rank} at epoch {self.model.epoch} or the next"
                yield self.finding("TP-003", text, f"epoch {one['epoch']}")

    def _formed(self, seen: Observation, state: dict[int, Any]) -> Iterator[Finding]:
        model = self.model
        model.members -= set(seen.value["dead"])
        if seen.outcome == "RankLost":
            healthy = set(seen.value["lost"]) & model.members - set(seen.value["stopped"])
            stale = {r for r in healthy if r in self.named}
            if healthy - stale:
                text = "all survivors agree on one epoch"
                yield self.finding("TP-003", text, f"form: {seen.detail}")
            model.members -= set(seen.value["lost"])
            return
        if seen.outcome != "ok" and not model.members - set(seen.value["stopped"]):
            self.unwell = set()  # nobody is left
            return
        if seen.outcome != "ok":
            yield self.finding("TP-003", "survivors form a group again", f"{seen.outcome}: {seen.detail}")
            return
        model.members -= set(seen.value["stopped"])
        state = {r: s for r, s in state.items() if r in model.members}
        epochs = {one["epoch"] for one in state.values()}
        if model.after is not None and epochs == {model.epoch + 1}:
            model.state, model.epoch = model.after, model.epoch + 1
            self.digest = ""
        model.after, self.named, self.unwell = None, frozenset(), set()
        yield from self._settled(state)

    # ------------------------------------------------------------ what every rank holds

    def _settled(self, state: dict[int, Any], changed: bool = False) -> Iterator[Finding]:
        """Every rank of a group that is whole is in the model's state."""
        model = self.model
        if self.named:
            return
        for rank, one in state.items():
            if one["epoch"] != model.epoch:
                text = f"rank {rank} at epoch {model.epoch}, like all"
                yield self.finding(self._blame("TP-003"), text, f"epoch {one['epoch']}")
            yield from self._rank(rank, one)
        yield from self._alike(state, changed)

    def _blame(self, otherwise: str) -> str:
        tampered = any("message" in f for f in (self.case.history[self.index].args or {}).get("faults", ()))
        return "TP-004" if tampered else otherwise

    def _rank(self, rank: int, one: dict[str, Any]) -> Iterator[Finding]:
        model, tables = self.model, one["tables"]
        if set(tables) != set(model.state):
            text = f"rank {rank} has sequences {sorted(model.state)}"
            yield self.finding(self._blame("TP-003"), text, f"{sorted(tables)}")
        if not model.state and one["free"] != model.capacity:
            text = f"{model.capacity} blocks free on rank {rank}: what the smallest rank has"
            yield self.finding("TP-001", text, f"{one['free']}")
        for seq, table in tables.items():
            held = model.state.get(seq)
            if held is None:
                continue
            wrong = [b for b in table if not 0 <= b < model.pools[rank]]
            if wrong:
                text = f"blocks of rank {rank} in 0..{model.pools[rank] - 1}"
                yield self.finding("TP-001", text, f"{wrong[0]} in the table of {seq}")
            entries = model.blocks(len(held.tokens)) if held.active else 0
            if len(table) != entries or len(set(table)) != len(table):
                text = f"rank {rank}: {entries} blocks of sequence {seq}, each once"
                yield self.finding(self._blame("TP-002"), text, f"{table}")
            elif held.active and one["reads"].get(seq) != (right := chain(held.tokens)):
                pairs = zip(one["reads"].get(seq, []), right, strict=False)
                at = next((p for p, (a, b) in enumerate(pairs) if a != b), len(right))
                view = one["views"].get(seq)
                name = "TP-006" if view and at < view[0] else self._blame("TP-002")
                text = f"rank {rank} reads the history of sequence {seq} at position {at}"
                yield self.finding(name, text, "other KV")

    def _alike(self, state: dict[int, Any], changed: bool) -> Iterator[Finding]:
        """TP-002: structure and digest are equal on all ranks, and the digest tells states apart."""
        ranks = sorted(state)
        for rank in ranks[1:]:
            one, other = state[ranks[0]], state[rank]
            if structure(one["tables"]) != structure(other["tables"]):
                text = f"tables of rank {rank} like those of rank {ranks[0]}: {one['tables']}"
                yield self.finding(self._blame("TP-002"), text, f"{other['tables']}")
            if one["digest"] != other["digest"]:
                text = f"digest of rank {rank} like that of rank {ranks[0]}: {one['digest']}"
                yield self.finding(self._blame("TP-002"), text, other["digest"])
            if one["free"] != other["free"]:
                text = f"{one['free']} free blocks on rank {rank} as on rank {ranks[0]}"
                yield self.finding("TP-001", text, f"{other['free']}")
        if not ranks:
            return
        if changed and self.digest == state[ranks[0]]["digest"]:
            yield self.finding("TP-002", "a digest that changes with token counts and tables", self.digest)
        self.digest = state[ranks[0]]["digest"]

    def _answers(
        self, operations: Sequence[Sequence[Any]], value: dict[str, Any], state: dict[int, Any]
    ) -> Iterator[Finding]:
        """TP-006, TP-007: cached tokens, and what reached each rank."""
        for operation, result in zip(operations, value["results"], strict=True):
            name, seq = operation[0], operation[1]
            held = self.model.state.get(seq)
            if name in ("free", "preempt") or held is None:
                continue
            length = len(held.tokens)
            start = result if name in ("add", "resume") else length - len(operation[2])
            if start is None or not 0 <= start < length:
                yield self.finding("TP-006", f"cached tokens of {seq}, below {length}", f"{result}")
                continue
            for rank, one in state.items():
                if seq not in one["views"]:
                    continue
                seen, tokens = one["views"][seq]
                if name != "append" and seen != start and seen % self.model.block_size == 0:
                    text = f"rank {rank} computes sequence {seq} from {start} on, what all ranks have cached"
                    yield self.finding("TP-006", text, f"from {seen} on")
                if (
                    seen > start
                    or seen + len(tokens) != length
                    or tuple(tokens) != held.tokens[max(seen, 0) :]
                ):
                    text = f"rank {rank} gets tokens {list(held.tokens[start:])} of sequence {seq}"
                    yield self.finding("TP-007", text, f"{tokens} from position {seen} on")

    def _bytes(self, args: dict[str, Any], value: dict[str, Any]) -> Iterator[Finding]:
        """TP-008: the same decode step with short tables and with long ones."""
        if args.get("tables") == "short":
            self.short = value["bytes"]
        if args.get("tables") == "long" and self.short is not None:
            most = LESS * self.short + SLACK * len(self.case.pools)
            if value["bytes"] > most:
                text = f"at most {most:.0f} bytes: {self.short} with short tables"
                yield self.finding("TP-008", text, f"{value['bytes']}")


__all__ = ["State", "judge_ranks"]

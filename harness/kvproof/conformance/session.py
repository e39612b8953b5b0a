"""One implementation under judgement: runs cases in its worker and turns findings into results."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvproof import ledger
from kvproof.checks import judge
from kvproof.checks.kernels import judge_kernel
from kvproof.checks.ranks import judge_ranks
from kvproof.checks.scheduling import judge_scheduler
from kvproof.conformance.drawn import drawn
from kvproof.conformance.look import Driven
from kvproof.histories.build import runnable
from kvproof.oracle.model import Facts
from kvproof.oracle.scheduling import SchedulerFacts
from kvproof.records import Case, Finding, Judged, Result, Verdict
from kvproof.spec import Spec
from kvproof.subjects import Implementation, SubjectError
from kvproof.subjects.drive import describe
from kvproof.subjects.host import CALL_LIMIT, Outcome
from kvproof.subjects.rank_processes import widened

RANDOM = {
    "manager": "KVP-POOL-001",
    "scheduler": "KVP-SCHED-005",
    "ranks": "KVP-TP-003",
    "kernel": "KVP-NUM-001",
}
"""A random history that does not end counts against this: it aims at nothing in particular."""
CANDIDATES = 3
"""Failing cases of a requirement that are shrunk; the shortest outcome is shown."""
LONGEST_NAME = 80
"""Bytes of the name of an implementation in names of files."""
MOST_HANGS = 10
"""A subject that hangs so often, or a kernel that crashes so often, is given up: each time takes long."""
_ENDS = {"error": Verdict.ERROR, "died": Verdict.ERROR, "timeout": Verdict.TIMEOUT}


@dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    profile: str = "manager"
    requirements: tuple[str, ...] = ()
    """Judge these only; empty for all."""
    histories: int = 600
    """Seeded random histories."""
    deep: bool = False
    """Long histories and the search by Hypothesis too."""
    budget: float | None = None
    """Seconds from the start of the run after which no random history begins."""
    seed: int = 0
    call_limit: float = CALL_LIMIT
    folder: Path = Path("results/runs")
    shard: tuple[int, int] | None = None
    """(i, n): every n-th test only, from the i-th on."""


@dataclass
class Session:
    """Runs cases and keeps their results."""

    worker: Driven
    spec: Spec
    settings: Settings
    description: dict[str, Any]
    known: list[ledger.Known] = field(default_factory=list)
    emit: Callable[[Judged | Result], None] = lambda record: None
    results: list[Result] = field(default_factory=list)
    cases: int = 0
    hangs: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Why the factory refused a shape -> how many cases had it."""
    stem: str = "failure"
    """Begins the names of saved failures."""
    failing: dict[str, list[Case]] = field(default_factory=dict)
    """Requirement -> its shortest failing cases so far; those that known.toml excuses are not among them."""
    lost: dict[str, tuple[Case, Result]] = field(default_factory=dict)
    """Requirement -> of its cases that ended in an error or a hang the worst and shortest, and its result."""
    excused: dict[str, tuple[Case, Result]] = field(default_factory=dict)
    """Requirement -> the shortest case that failed as known.toml says, and its result."""
    started: float = field(default_factory=time.monotonic)
    margin: float | None = None
    """Of the kernel case that was judged last: its largest error over the bound."""
    _looks: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    """Shape -> what the subject says of itself there."""

    @property
    def name(self) -> str:
        return self.worker.implementation.name

    @property
    def gates(self) -> frozenset[str]:
        """Capabilities, and what attributes and optional members add: reserved, match, evict:lru-tail."""
        d = self.description
        gates = set(d["capabilities"])
        gates |= ({"processes"} if d.get("processes") else set()) | _fixed(d.get("world", 0))
        if self.settings.profile == "kernel":
            return frozenset(gates | ({"features"} if d["limits"].get("features") else set()))
        gates |= {name for name in ("reserved", "lookahead", "lazy") if d[name]}
        gates |= {"guard"} if d["guard"] is not None else set()
        gates |= {"match"} & set(d["members"])  # optional with prefix
        gates |= {f"publish:{d['publish']}", "hits:part" if "partial" in gates else "hits:whole"}
        gates |= {f"lookahead:{d['lookahead']}", f"watermark:{d['policy'].get('watermark', 0)}"}
        gates |= {f"{name}:{value}" for name, value in d["policy"].items()}
        gates |= {name for name, value in d["policy"].items() if value not in ("none", "other")}
        return frozenset(gates)

    def look(self, case: Case) -> dict[str, Any]:
        """What the subject says of itself in this shape; as at first where it does not serve it."""
        if case.shape not in self._looks:
            try:
                self._looks[case.shape] = self.worker.describe(*case.shape)
            except SubjectError:  # the run itself will tell
                self._looks[case.shape] = self.description
        return self._looks[case.shape]

    def sized(self, case: Case) -> Case:
        """The case with so many blocks more as this subject reserves and keeps back in that shape."""
        if case.pools:
            pools = widened(case.pools, self.description["world"])
            return case.model_copy(update={"pools": pools})
        if case.kernel is not None:
            return case
        sized, extra = case, _kept(case, self.description)
        for _ in range(8):  # what it keeps may grow with the pool
            sized = case.model_copy(update={"num_blocks": case.num_blocks + extra})
            now = _kept(case, self.look(sized))
            if now == extra:
                break
            extra = now
        return sized

    def facts(self, case: Case) -> Facts:
        d = self.look(case)
        return Facts(
            num_blocks=case.num_blocks,
            block_size=case.block_size,
            capabilities=frozenset(d["capabilities"]),
            reserved=frozenset(d["reserved"]),
            lookahead=d["lookahead"],
            lazy=d["lazy"],
            policy=d["policy"],
            publish=d["publish"],
            guard=d["guard"],
        )

    def scheduler_facts(self, case: Case) -> SchedulerFacts:
        d = self.look(case)
        assert case.max_seqs is not None
        assert case.max_tokens is not None
        return SchedulerFacts(
            num_blocks=case.num_blocks,
            block_size=case.block_size,
            max_seqs=case.max_seqs,
            max_tokens=case.max_tokens,
            capabilities=frozenset(d["capabilities"]),
            reserved=frozenset(d["reserved"]),
            policy=d["policy"],
        )

    @property
    def spent(self) -> bool:
        """The budget is used up: no random history may begin."""
        budget = self.settings.budget
        return budget is not None and time.monotonic() - self.started > budget

    # ------------------------------------------------------------ cases

    def check(self, case: Case) -> list[Result]:
        """Run a case; a result for each requirement it aims at or was found to break."""
        wanted = self.settings.requirements
        aims = [a for a in case.aim if not wanted or a in wanted]
        if case.aim and not aims:
            return []
        self.cases += 1
        lacking = runnable(case, self.gates)
        if lacking:
            reason = "needs " + ", ".join(sorted(lacking))
            return [self.record(case.id, aim, Verdict.UNSUPPORTED, reason=reason) for aim in aims]
        unnamed = [a for a in aims if self._lacks(a)]
        aims = [a for a in aims if a not in unnamed]
        apart = [self.record(case.id, a, Verdict.UNSUPPORTED, reason=self._lacks(a)) for a in unnamed]
        if apart and not aims:
            return apart
        if self.hangs >= MOST_HANGS:
            reason = f"not run: {MOST_HANGS} calls before it gave no answer"
            return apart + [self.record(case.id, aim, Verdict.NOT_RUN, reason=reason) for aim in aims]
        fields = case.model_dump(include={"id", "aim", "num_blocks", "block_size", "seed", "note"})
        self.emit(Judged(operations=len(case.history), **fields))
        start = time.perf_counter()
        outcome, findings = self.run_again(case)
        spent = (time.perf_counter() - start) * 1e3
        # A kernel's process takes seconds to start again; a manager's does not.
        self.hangs += outcome.end == "timeout" or (outcome.end == "died" and case.profile == "kernel")
        if outcome.end == "unserved" and outcome.step < 0:
            self.left_out[_plainly(outcome.detail)] += 1
        if outcome.end == "unserved" and not findings:
            unserved = (self.record(case.id, a, Verdict.UNSUPPORTED, reason=outcome.detail) for a in aims)
            return apart + list(unserved)
        found = {f.requirement for f in findings}
        results = apart + [self._failed(case, f, findings[0], spent) for f in findings]
        for aim in aims:
            if aim not in found:
                results.append(self._ended(case, aim, outcome, spent))
        explained = any(f.step == outcome.step for f in findings)  # a finding says what ended it
        lost = not case.aim and outcome.end != "complete" and not explained
        if lost and (not wanted or RANDOM[case.profile] in wanted):
            results.append(self._ended(case, RANDOM[case.profile], outcome, spent))
        return results

    def _lacks(self, requirement: str) -> str:
        """What the subject would have to name or declare to be asked for it; "" for nothing."""
        known = self.spec.requirements.get(requirement)
        lacking = set(known.needs) - self.gates if known else set()
        return "needs " + ", ".join(sorted(lacking)) if lacking else ""

    def run(self, case: Case) -> tuple[Outcome, list[Finding]]:
        """Drive the subject through the case and judge what was seen."""
        sized = self.sized(case)
        outcome = _judgeable(self.worker.run(sized), sized, self.look(sized)["capabilities"])
        try:
            findings = self._judge(sized, outcome)
        except Exception as error:  # what the subject answered made no sense to a check
            last = len(outcome.observations) - 1
            return replace(outcome, end="error", step=last, detail=f"cannot be judged: {describe(error)}"), []
        known = self.spec.requirements
        wanted = self.settings.requirements
        findings = [f for f in findings if f.requirement in known]
        # What it does not name is not held against it where another requirement says what is wrong.
        named = [f for f in findings if not self._lacks(f.requirement)] or findings
        return outcome, [f for f in named if not wanted or f.requirement in wanted]

    def run_again(self, case: Case) -> tuple[Outcome, list[Finding]]:
        """As `run`, but what real processes do wrong they have to do again in one of two more runs.

        A busy machine can make them late once.
        """
        outcome, findings = self.run(case)
        first = {f.requirement for f in findings}
        if "processes" not in self.gates or not (findings or outcome.end in _ENDS):
            return outcome, findings
        for _ in range(2):
            outcome, findings = self.run(case)
            findings = [f for f in findings if f.requirement in first]
            if findings or outcome.end in _ENDS:
                break
        return outcome, findings

    def _judge(self, case: Case, outcome: Outcome) -> list[Finding]:
        if case.kernel is not None:
            judged = judge_kernel(case, outcome.observations, outcome.detail if outcome.end == "died" else "")
            self.margin = judged.margin
            return judged.findings
        if case.profile == "ranks":
            return judge_ranks(case, outcome.observations)
        if case.profile == "scheduler":
            return judge_scheduler(case, self.scheduler_facts(case), outcome.observations)
        return judge(case, self.facts(case), outcome.observations)

    def _failed(self, case: Case, finding: Finding, first: Finding, spent: float) -> Result:
        short = case.model_copy(update={"history": case.history[: finding.step + 1]})
        after = first.requirement if first.step < finding.step else ""
        result = self.record(
            case.id,
            finding.requirement,
            Verdict.FAIL,
            reason=finding.message,
            expected=finding.expected,
            got=finding.got,
            after=after,
            history=short.history,
            **case.room,
            step=finding.step,
            milliseconds=spent,
            margin=self.margin,
        )
        if result.verdict is Verdict.FAIL:
            found = [*self.failing.get(finding.requirement, []), short]
            self.failing[finding.requirement] = sorted(found, key=lambda c: len(c.history))[:CANDIDATES]
        before = self.excused.get(finding.requirement)
        rank = bool(after), len(short.history)  # as a report chooses what it shows
        if result.verdict is Verdict.XFAIL and (
            before is None or rank < (bool(before[1].after), len(before[0].history))
        ):
            self.excused[finding.requirement] = short, result
        return result

    def _ended(self, case: Case, aim: str, outcome: Outcome, spent: float) -> Result:
        if outcome.end == "unserved":
            return self.record(case.id, aim, Verdict.UNSUPPORTED, reason=outcome.detail)
        verdict = _ENDS.get(outcome.end)
        if verdict is None:
            return self.record(case.id, aim, Verdict.PASS, milliseconds=spent, margin=self.margin)
        step = max(outcome.step, 0)
        short = case.model_copy(update={"history": case.history[: step + 1], "aim": (aim,)})
        result = self.record(
            case.id,
            aim,
            verdict,
            reason=outcome.detail,
            history=short.history,
            **case.room,
            step=step,
            milliseconds=spent,
        )
        before = self.lost.get(aim)
        if before is None or _rank(result) < _rank(before[1]):
            observed = drawn(short, outcome.observations)
            self.lost[aim] = short, result.model_copy(update={"observed": observed})
        return result

    def record(self, case: str, requirement: str, verdict: Verdict, **fields: Any) -> Result:
        """Keep a result and hand it on."""
        result = ledger.settle(
            Result(case=case, requirement=requirement, verdict=verdict, **fields), self.known
        )
        self.results.append(result)
        self.emit(result)
        return result


def _rank(result: Result) -> tuple[int, int]:
    """The worst verdict first, as a report shows it, and then the shortest history."""
    return list(Verdict).index(result.verdict), len(result.history)


def _fixed(world: int) -> set[str]:
    return {f"world:{world}"} if world else set()


def _plainly(refusal: str) -> str:
    """make(8, 1): Refused: why at adapter.py:20 -> Refused: why."""
    return refusal.partition("): ")[2].rpartition(" at ")[0] or refusal


def _kept(case: Case, description: dict[str, Any]) -> int:
    """Blocks that no new sequence can have: reserved, or kept back by a manager at admission."""
    watermark = int(description["policy"].get("watermark", 0)) if case.profile == "manager" else 0
    return len(description["reserved"]) + max(0, watermark)


def _judgeable(outcome: Outcome, case: Case, capabilities: Collection[str]) -> Outcome:
    """The outcome up to a hit that ends inside a block, for a subject that does not say what it copied."""
    if case.profile != "manager" or "partial" not in capabilities or "copies" in capabilities:
        return outcome
    for step, (op, seen) in enumerate(zip(case.history, outcome.observations, strict=False)):
        if op.op == "add" and seen.outcome == "ok" and int(seen.value) % case.block_size:
            reason = "needs copies: a hit ends inside a block"
            return replace(
                outcome, observations=outcome.observations[:step], end="unserved", step=step, detail=reason
            )
    return outcome


def file_name(implementation: Implementation) -> str:
    """The name of an implementation as a file name, such as any file system takes."""
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in Path(implementation.name).name)
    return name if len(name.encode()) <= LONGEST_NAME else f"{name[:60]}-{zlib.crc32(name.encode()):08x}"

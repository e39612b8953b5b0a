"""Judges a kernel: against float64, against its own other calls, and by what it left in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.histories.payload import Inputs, inputs, named, setting_of, tokens
from kvproof.oracle.attention import Doubles, Expected, attention, merged
from kvproof.oracle.floats import rounded
from kvproof.records import Case, Finding, Observation

ARITHMETIC = "KVP-NUM-001"
SLOTS, HEADS = "KVP-KERN-001", "KVP-KERN-004"
BY_VALUE = frozenset(
    f"KVP-{name}"
    for name in (
        *("KERN-001", "KERN-003", "KERN-004", "KERN-005", "KERN-007", "KERN-010", "KERN-011", "KERN-012"),
        *("KERN-013", "KERN-015", "NUM-001", "NUM-002"),
    )
)
"""Requirements that a wrong value in a case of theirs breaks; elsewhere it is one of the arithmetic."""
FAULTS = {"memory": "KVP-KERN-006", "race": "KVP-KERN-008", "barrier": "KVP-KERN-008"}
CRASHES = ("signal 11", "signal 7", "signal 10")
"""How a process dies of a forbidden address."""


@dataclass
class Judgement:
    """What was found in a case."""

    findings: list[Finding] = field(default_factory=list)
    margin: float | None = None
    """Largest error over its bound, of the calls whose values were compared."""


@dataclass
class Call:
    """One answered call beside what it should have answered."""

    step: int
    given: Inputs
    out: Doubles
    lse: Doubles | None
    expected: Expected | None
    """None for coded payloads, which are read, not compared."""


def judge_kernel(case: Case, observations: Sequence[Observation], died: str = "") -> Judgement:
    """Findings in order of call, the first of each requirement.

    died: how the process ended in the call after the last observation, or "".
    """
    assert case.kernel is not None
    judge = _Judge(case)
    found = list(judge.run(observations))
    if any(crash in died for crash in CRASHES):
        step = min(len(observations), len(case.history) - 1)
        found.append(
            judge.finding("KVP-KERN-006", step, "no access outside the tensors", f"the process ended: {died}")
        )
    first: dict[str, Finding] = {}
    for finding in found:
        names = [finding.requirement]
        if finding.requirement in case.stands_for:
            names += case.aim
        for name in names:
            first.setdefault(name, finding.model_copy(update={"requirement": name}))
    return Judgement(sorted(first.values(), key=lambda f: (f.step, f.requirement)), judge.margin)


class _Judge:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.margin: float | None = None
        self.aims = [a for a in case.aim if a in BY_VALUE] or [ARITHMETIC]
        self.calls: list[Call] = []

    def finding(self, requirement: str, step: int, expected: str, got: str) -> Finding:
        said = str(setting_of(self.case, self.case.history[step]))
        return Finding(requirement=requirement, step=step, expected=expected, got=got, message=said)

    def wrong(self, names: Sequence[str], step: int, expected: str, got: str) -> Iterator[Finding]:
        for name in names:
            yield self.finding(name, step, expected, got)

    def run(self, observations: Sequence[Observation]) -> Iterator[Finding]:
        for step, seen in enumerate(observations):
            op = self.case.history[step]
            setting = setting_of(self.case, op)
            if setting.refuse or setting.source:
                yield from self._refused(step, seen)
                if seen.outcome != "ok" or setting.refuse:
                    continue
            if seen.outcome == "fault":
                name = FAULTS[seen.value["kind"]]
                yield self.finding(name, step, "no access out of bounds and no race", seen.detail)
                continue
            if seen.outcome in ("error", "unserved"):
                break
            if seen.outcome != "ok":
                expected = "an answer: the call is within the declared limits"
                got = f"{seen.outcome}: {seen.detail}"
                yield from self.wrong(self.case.aim or [ARITHMETIC], step, expected, got)
                continue
            yield from self._memory(step, seen.value)
            given = inputs(self.case, op)
            if op.op in ("write", "copy_blocks"):
                yield from self._stored(step, op.op, given, seen.value)
            else:
                yield from self._attended(step, given, seen.value)
        yield from self._relations()

    # ------------------------------------------------------------ one call

    def _refused(self, step: int, seen: Observation) -> Iterator[Finding]:
        setting = setting_of(self.case, self.case.history[step])
        what = setting.refuse or f"{setting.source} tokens in a cache of {setting.dtype}"
        name, value = what.partition("=")[::2]
        expected = f"BadInput that names the {name.strip()}" + (f" {value}" if value else "")
        if seen.outcome == "ok" and setting.refuse:
            yield self.finding("KVP-KERN-009", step, expected, f"an answer: {seen.value}")
        elif seen.outcome not in ("ok", "BadInput"):
            yield self.finding("KVP-KERN-009", step, expected, f"{seen.outcome}: {seen.detail}")
        elif seen.outcome == "BadInput" and (value or "").strip() not in seen.detail:
            yield self.finding("KVP-KERN-009", step, expected, f"BadInput: {seen.detail}")

    def _memory(self, step: int, value: dict[str, Any]) -> Iterator[Finding]:
        if value["torn"]:
            names = ", ".join(value["torn"])
            yield self.finding("KVP-KERN-006", step, "no write outside a tensor", f"a write beside {names}")
        if value.get("changed"):
            names = ", ".join(value["changed"])
            yield self.finding("KVP-KERN-016", step, "inputs are read only", f"a write into {names}")

    def _stored(self, step: int, op: str, given: Inputs, value: dict[str, Any]) -> Iterator[Finding]:
        new = tokens(given)
        for which in (name for name in ("k", "v", "third") if name in value):
            pool = rounded(given.setting.dtype, given.pool("v" if which == "v" else "k"))
            if op == "write":
                flat = pool.reshape(-1, *pool.shape[2:])
                for slot, content in zip(given.setting.slots, new[which], strict=True):
                    if slot >= 0:
                        flat[slot] = rounded(given.setting.dtype, content)
            else:
                for source, target in given.setting.pairs:
                    pool[target] = pool[source]
            wrong = np.argwhere((pool != value[which]) & ~(np.isnan(pool) & np.isnan(value[which])))
            if len(wrong):
                block, offset, head, dim = map(int, wrong[0])
                slots = len({(int(b), int(o)) for b, o, _, _ in wrong})
                yield self.finding(
                    "KVP-KERN-014",
                    step,
                    f"{which}_cache[{block}, {offset}] of KV head {head}, dim {dim}: "
                    f"{pool[block, offset, head, dim]:g}",
                    f"{value[which][block, offset, head, dim]:g} (wrong in {slots} slots)",
                )

    def _attended(self, step: int, given: Inputs, value: dict[str, Any]) -> Iterator[Finding]:
        out = value["out"].astype(np.float64)
        lse = None if value["lse"] is None else value["lse"].astype(np.float64)
        if value.get("lse_declared") and value["lse_dtype"] != "float32":
            yield self.finding("KVP-KERN-010", step, "an lse of float32", f"lse {value['lse_dtype']}")
        if given.setting.payload == "coded":
            self.calls.append(Call(step, given, out, lse, None))
            yield from self._probed(step, given, out)
            return
        expected = attention(given)
        self.calls.append(Call(step, given, out, lse, expected))
        ratio = _ratio(out, expected.out, expected.bound)
        worst = float(ratio.max(initial=0))
        self.margin = max(self.margin or 0.0, worst if np.isfinite(worst) else 1e9)
        if worst > 1:
            row, head, dim = np.unravel_index(int(ratio.argmax()), ratio.shape)
            foreign = self.aims == [ARITHMETIC] and given.setting.poison and not np.isfinite(worst)
            yield from self.wrong(
                ["KVP-KERN-002"] if foreign else self.aims,
                step,
                f"row {row}, query head {head}, dim {dim}: {expected.out[row, head, dim]:.6g} "
                f"within {expected.bound[row, head, dim]:.2g}",
                f"{out[row, head, dim]:.6g}, {worst:.3g} times the bound",
            )
        if lse is not None:
            yield from self._log_sums(step, lse, expected)

    def _log_sums(self, step: int, lse: Doubles, expected: Expected) -> Iterator[Finding]:
        empty = np.isneginf(expected.lse)
        with np.errstate(invalid="ignore"):
            ratio = np.where(
                empty, np.where(np.isneginf(lse), 0, np.inf), _ratio(lse, expected.lse, expected.lse_bound)
            )
        if ratio.max(initial=0) > 1:
            row, head = np.unravel_index(int(ratio.argmax()), ratio.shape)
            name = "KVP-KERN-005" if empty[row, head] else "KVP-KERN-010"
            yield self.finding(
                name,
                step,
                f"row {row}, query head {head}: lse {expected.lse[row, head]:.7g} "
                f"within {expected.lse_bound[row, head]:.2g}",
                f"{lse[row, head]:.7g}",
            )

    def _probed(self, step: int, given: Inputs, out: Doubles) -> Iterator[Finding]:
        """Which slot does each answer name?"""
        s, size = given.setting, given.block_size
        right = np.zeros(given.targets.shape, np.bool_)
        first: tuple[str, str, bool] | None = None
        for r, seq in enumerate(given.rows):
            own, n = given.tables[seq], given.lens[r]
            for h in range(out.shape[1]):
                p, head = int(given.targets[r, h]), h // s.group
                found = named(out[r, h], s.kv_heads)
                wanted = own[p // size] * size + p % size if p < n else -1
                past = p >= n and (found is None or _holds(own, n, found[0], size))
                right[r, h] = past or found == (wanted, head)
                if right[r, h] or first is not None:
                    continue
                expected = "no slot past the end"
                if p < n:
                    expected = f"block {wanted // size}, offset {wanted % size} of KV head {head}"
                got = "no single slot: " + ", ".join(f"{x:.2g}" for x in out[r, h, :6]) + ", ..."
                if found is not None:
                    got = f"block {found[0] // size}, offset {found[0] % size} of KV head {found[1]}"
                where = f"row {r}, query head {h}, position {p} of {n}: {expected}"
                first = where, got, found is not None and found[0] == wanted
        if first is not None:
            where, got, other_head = first
            live = given.targets < np.array(given.lens)[:, None]  # past the end nearly all are right
            yield from self.wrong(self._probed_for(right, live, other_head), step, where, got)

    def _probed_for(self, right: NDArray[np.bool_], live: NDArray[np.bool_], other_head: bool) -> list[str]:
        """What wrong probes break, [rows, query heads] of which are right: heads, or slots.

        The wrong KV head is read by the same query heads in every row; a wrong slot is read by all heads.
        """
        wrong = {h for h in range(right.shape[1]) if not right[:, h].all()}
        wholly = all(not (right[:, h] & live[:, h]).any() for h in wrong)
        if other_head or (wholly and len(wrong) < right.shape[1]):
            return [HEADS]
        return self.aims if wholly else [a for a in self.aims if a != HEADS] or [SLOTS]

    # ------------------------------------------------------------ calls against each other

    def _relations(self) -> Iterator[Finding]:
        if not self.calls:
            return
        aims = set(self.case.aim)
        for i, call in enumerate(self.calls[1:], 1):
            base = next(c for c in self.calls[: i + 1] if c.out.shape == call.out.shape)
            if aims & {"KVP-KERN-002", "KVP-KERN-008"}:
                yield from self._same_bits(base, call)
            elif "KVP-KERN-012" in aims and _features(call) != _features(base):
                yield from self._changed(base, call)
            elif call.expected is not None and "KVP-KERN-003" in aims:
                yield from self._same_value(base, call)
        if "KVP-KERN-010" in aims:
            yield from self._merge()

    def _same_bits(self, base: Call, call: Call) -> Iterator[Finding]:
        name = "KVP-KERN-002" if "KVP-KERN-002" in self.case.aim else "KVP-KERN-008"
        pairs = [("out", base.out, call.out)]
        if base.lse is not None and call.lse is not None:
            pairs.append(("lse", base.lse, call.lse))
        for what, one, other in pairs:
            differs = (one != other) & ~(np.isnan(one) & np.isnan(other))
            if differs.any():
                where = tuple(int(i) for i in np.argwhere(differs)[0])
                yield self.finding(
                    name,
                    call.step,
                    f"the bits of call {base.step}: {what}{list(where)} = {one[where]:.9g}",
                    f"{other[where]:.9g} (differs in {int(differs.sum())} of {differs.size})",
                )
                return

    def _changed(self, base: Call, call: Call) -> Iterator[Finding]:
        names = ", ".join(sorted(set(_features(call)) | set(_features(base))))
        if base.out.shape == call.out.shape and np.array_equal(base.out, call.out):
            yield self.finding(
                "KVP-KERN-012", call.step, f"{names} changes the output of call {base.step}", "the same bits"
            )

    def _same_value(self, base: Call, call: Call) -> Iterator[Finding]:
        if base.expected is None or call.expected is None or base.out.shape != call.out.shape:
            return
        ratio = _ratio(call.out, base.out, base.expected.bound + call.expected.bound)
        if ratio.max(initial=0) > 1:
            row, head, dim = np.unravel_index(int(ratio.argmax()), ratio.shape)
            yield self.finding(
                "KVP-KERN-003",
                call.step,
                f"row {row}, query head {head}, dim {dim}: {base.out[row, head, dim]:.6g}, as with "
                f"the {base.given.setting.topology} table",
                f"{call.out[row, head, dim]:.6g} with the {call.given.setting.topology} table",
            )

    def _merge(self) -> Iterator[Finding]:
        """Parts of the sequences, merged by their lse, are the whole."""
        parts = [c for c in self.calls if c.given.setting.part and c.lse is not None and c.expected]
        if len(parts) < 2 or len(parts) + 1 > len(self.calls) or self.calls[0].expected is None:
            return
        whole = self.calls[0].expected
        out, lse = merged([(np.nan_to_num(c.out), c.lse) for c in parts if c.lse is not None])
        slack = sum(
            (
                np.exp(np.minimum(c.expected.lse - whole.lse, 0))[..., None] * c.expected.bound
                for c in parts
                if c.expected
            ),
            np.zeros_like(whole.bound),
        )
        loose = sum((c.expected.lse_bound for c in parts if c.expected), np.zeros_like(whole.lse_bound))
        bound = slack + whole.bound + 2 * loose[..., None] * (1 + np.abs(whole.out))
        ratio = _ratio(out, whole.out, bound)
        if ratio.max(initial=0) > 1:
            row, head, dim = np.unravel_index(int(ratio.argmax()), ratio.shape)
            yield self.finding(
                "KVP-KERN-010",
                parts[-1].step,
                f"parts merged by lse give the whole; row {row}, query head {head}, dim {dim}: "
                f"{whole.out[row, head, dim]:.6g}",
                f"{out[row, head, dim]:.6g}, lse {lse[row, head]:.6g} for {whole.lse[row, head]:.6g}",
            )


def _features(call: Call) -> dict[str, float]:
    """Those that are not off."""
    return {name: value for name, value in call.given.setting.features.items() if value}


def _holds(table: list[int], length: int, slot: int, size: int) -> bool:
    """The slot is one of the sequence's live ones."""
    block, offset = divmod(slot, size)
    return block in table and table.index(block) * size + offset < length


def _ratio(got: Doubles, wanted: Doubles, bound: Doubles) -> NDArray[np.float64]:
    """Error over bound; infinite where the answer is no number."""
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got - wanted)
        ratio = np.where(error == 0, 0.0, error / bound)
    return np.where(np.isfinite(got), ratio, np.inf)

"""Runs every check over a history; the first finding of each requirement counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvproof.checks import answers, contents, keys, pool, sharing, tables, values
from kvproof.checks.step import START, Step
from kvproof.oracle.model import Facts, Model
from kvproof.records import Case, Finding, Observation

Check = Callable[[Step], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    answers.bad_input,
    answers.unchanged,
    answers.must_succeed,
    answers.probe,
    answers.own_invariants,
    values.hit_length,
    values.expectations,
    values.batch,
    values.csr,
    values.slots,
    values.wire,
    values.codec,
    tables.lengths,
    tables.entries,
    tables.stability,
    tables.callers_copy,
    pool.aliases,
    pool.conservation,
    pool.reserved,
    pool.reclaim,
    pool.raw_blocks,
    sharing.fork,
    sharing.one_writer,
    sharing.needless_copy,
    sharing.reported_copies,
    sharing.reference_counts,
    sharing.truncation,
    contents.read_back,
)


def judge(case: Case, facts: Facts, observations: Sequence[Observation]) -> list[Finding]:
    """Findings in order of step, one a requirement, judged as if all others were muted.

    A finding of a requirement that the case `stands_for` counts against the case's aims as well.
    """
    model = Model(facts)
    first: dict[str, Finding] = {}
    before = START
    for index, seen in enumerate(observations):
        if seen.outcome == "error":
            break
        op = case.history[index]
        was = {s: q.copy() for s, q in model.sequences.items()}
        was_raw = dict(model.raw_refs)
        model.apply(op, seen)
        step = Step(case, index, op, seen, before, was, was_raw, model)
        for check in CHECKS:
            for finding in check(step):
                first.setdefault(finding.requirement, finding)
        before = seen
    for finding in keys.compare(case, observations):
        first.setdefault(finding.requirement, finding)
    for finding in sorted(first.values(), key=lambda f: f.step):
        if finding.requirement in case.stands_for:
            for aim in case.aim:
                first.setdefault(aim, finding.model_copy(update={"requirement": aim}))
    return sorted(first.values(), key=lambda f: (f.step, f.requirement))

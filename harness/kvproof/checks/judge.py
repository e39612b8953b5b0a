"""Runs every check over a history; the first finding of each requirement counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kvproof.checks import answers, contents, keys, pool, sharing, tables, values
from kvproof.checks.first import first_of_each
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
    """Findings in order of step, one a requirement, judged as if all others were muted."""
    return first_of_each(case, _findings(case, Model(facts), observations))


def _findings(case: Case, model: Model, observations: Sequence[Observation]) -> Iterator[Finding]:
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
            yield from check(step)
        before = seen
    yield from keys.compare(case, observations)

"""Histories that Hypothesis writes, for `--deep`.

A composite strategy draws a list of intents ("append to the a-th live sequence") and the scribe turns
them into a legal history. Which kinds of operation occur is drawn first: faults hide where one kind is
rare. A RuleBasedStateMachine would run its rules; here a history is only to be written.

Hypothesis generates, and the shrinker of this package shrinks: it drops whole sequences and keeps the
history legal. Hypothesis's own, on the same failure, was at 179 of 183 operations after five minutes,
for every intent it drops changes what those behind it mean.

Hypothesis is in the extra `dev`; import this module only where it is installed.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterable

import hypothesis
from hypothesis import configuration
from hypothesis import strategies as st

from kvproof.histories.directed.scheduling import Load
from kvproof.histories.scribe import KINDS, Scribe
from kvproof.records import Case

LENGTHS = (6, 12, 24, 48)
"""Least numbers of intents, the most is twice as many: left alone, lists hardly get beyond ten."""
_NUMBER = st.integers(0, 7)
_TOKENS = st.lists(st.integers(1, 2), max_size=9).map(tuple)


def manager_cases(capabilities: Iterable[str]) -> st.SearchStrategy[Case]:
    """Histories of a manager with these capabilities; each ends with everything freed and a reclaim."""
    has = frozenset(capabilities)
    spice = sorted(name for name, kind in KINDS.items() if kind.needs <= has and not kind.staple)
    staples = [name for name, kind in KINDS.items() for _ in range(kind.staple)]

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        block_size = draw(st.sampled_from((2, 1, 3, 4)))
        num_blocks = draw(st.integers(3, 12))
        served = draw(st.sets(st.sampled_from(spice))) if spice else set()
        kinds = st.sampled_from([*staples, *sorted(served)])
        intents = st.tuples(kinds, _NUMBER, _NUMBER, _TOKENS, st.booleans())
        least = draw(st.sampled_from(LENGTHS))
        scribe = Scribe(num_blocks, block_size, has)
        for name, a, b, tokens, late in draw(st.lists(intents, min_size=least, max_size=2 * least)):
            KINDS[name].write(scribe, a, b, tokens, late)
        return _named(scribe.close().case("", (), num_blocks, block_size))

    return cases()


def scheduler_cases(capabilities: Iterable[str]) -> st.SearchStrategy[Case]:
    """Loads of a scheduler with these capabilities; each ends with a drain."""
    has = frozenset(capabilities)

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        size, blocks = draw(st.sampled_from((2, 1, 3, 4))), draw(st.integers(3, 12))
        seqs, budget = draw(st.integers(1, 5)), draw(st.sampled_from((2, 3, 5, 8, 16, 32)))
        budget = budget if "tight_budget" in has else max(budget, seqs)
        budget = budget if "chunked" in has else max(budget, size * blocks)
        kinds = st.sampled_from(("submit", "submit", "step", "step", "abort", "abort_between"))
        intents = st.tuples(kinds, _NUMBER, _NUMBER, _TOKENS, st.integers(1, 3 * size + 4))
        least = draw(st.sampled_from(LENGTHS[:2]))
        load = Load()
        prompts: list[tuple[int, ...]] = [(1, 2)]
        for kind, a, b, tokens, max_new in draw(st.lists(intents, min_size=least, max_size=2 * least)):
            known = len(prompts) - 1  # the first is nobody's
            if kind == "submit":
                base = prompts[a % len(prompts)]
                prompt = (base[: max(len(base) - b, 0)] + tokens or (1,))[: size * blocks + 1]
                extra = {"priority": b % 3} if "order:priority" in has else {}
                load.submit(known, prompt, max_new, **extra)
                prompts.append(prompt)
            elif kind == "step" or not known:
                load.steps(1 + a % 4)
            elif kind == "abort":
                load.abort(a % known, args={"unknown": True})
            else:
                load.steps(1, abort_between=a % known)
        return _named(load.drain().load("", (), (blocks, size, seqs, budget)))

    return cases()


def _named(case: Case) -> Case:
    """Named by its content: one history, one name."""
    name = f"search/{zlib.crc32(case.model_dump_json().encode()):08x}"
    return case.model_copy(update={"id": name, "note": "written by Hypothesis"})


def explore(cases: st.SearchStrategy[Case], judge: Callable[[Case], None], seed: int, examples: int) -> None:
    """Hand so many cases, drawn from this seed, to `judge`."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        phases=[hypothesis.Phase.generate],
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        database=None,  # a run depends on its seed alone
    )
    @hypothesis.given(cases)
    def run(case: Case) -> None:
        judge(case)

    with tempfile.TemporaryDirectory(prefix="kvproof-hypothesis-") as home:
        configuration.set_hypothesis_home_dir(home)  # else it leaves a folder where it is started
        try:
            run()
        finally:
            configuration.set_hypothesis_home_dir(None)

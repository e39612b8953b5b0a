"""What is asked of a scheduler: feasible work, a budget it serves, an example that fits what it declares."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.conformance.session import Session
from kvproof.contract import Refused
from kvproof.histories.arrivals import arrivals
from kvproof.histories.directed import cases
from kvproof.records import Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import session_of
from kvproof_impls.reference.manager import Manager
from kvproof_impls.reference.scheduler import Scheduler


def watermarked(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """Keeps two blocks back at admission, and says so."""
    return Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens, watermark=min(2, num_blocks - 1))


def wide(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """Takes no budget below its sequences, and does not say that it would."""
    assert max_tokens >= max_seqs
    scheduler = Scheduler(Manager(num_blocks, block_size), max_seqs, max_tokens)
    scheduler.capabilities -= {"tight_budget"}
    return scheduler


def unchunked(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """Computes every prompt in one step: what could not be, it refuses."""

    class Whole(Scheduler):
        def submit(self, rid: int, tokens: Sequence[int], max_new: int, priority: int = 0) -> None:
            if len(tokens) + max_new - 1 > max_tokens:
                raise Refused(f"{len(tokens)} tokens and {max_new} new ones: a step computes {max_tokens}")
            super().submit(rid, tokens, max_new, priority)

    scheduler = Whole(Manager(num_blocks, block_size), max_seqs, max_tokens)
    scheduler.capabilities -= {"chunked"}
    return scheduler


def judged(where: str, arriving: int) -> Session:
    session = session_of(InProcess(where), "scheduler")
    for case in cases():
        if case.profile == "scheduler":
            session.check(case)
    for seed in range(arriving):
        session.check(arrivals(seed, session.gates))
    return session


def verdicts(session: Session, requirement: str) -> set[Verdict]:
    return {r.verdict for r in session.results if r.requirement == requirement}


def test_the_example_without_a_watermark_is_not_asked_of_one_with() -> None:
    session = judged(f"{__name__}:watermarked", 50)
    assert verdicts(session, "KVP-SCHED-008") == {Verdict.UNSUPPORTED}
    assert {r.verdict for r in session.results} == {Verdict.PASS, Verdict.UNSUPPORTED}


def test_a_budget_below_the_sequences_is_asked_only_of_those_that_name_it() -> None:
    session = judged(f"{__name__}:wide", 100)
    assert {r.verdict for r in session.results} == {Verdict.PASS, Verdict.UNSUPPORTED}
    assert Verdict.PASS in verdicts(session, "KVP-SCHED-001")


def test_an_engine_without_chunks_refuses_what_does_not_fit_a_step() -> None:
    session = judged(f"{__name__}:unchunked", 100)
    assert {r.verdict for r in session.results} == {Verdict.PASS, Verdict.UNSUPPORTED}
    assert Verdict.PASS in verdicts(session, "KVP-SCHED-004")


def test_what_fits_to_the_last_slot_is_accepted() -> None:
    session = judged("faulty:sampled_token_counted", 0)
    assert Verdict.FAIL in verdicts(session, "KVP-SCHED-005")


def test_an_engine_ended_by_an_oversize_request_breaks_one_requirement() -> None:
    session = judged("faulty:oversize_ends_the_engine", 300)
    sound = (Verdict.PASS, Verdict.UNSUPPORTED)
    assert {r.requirement for r in session.results if r.verdict not in sound} == {"KVP-SCHED-004"}

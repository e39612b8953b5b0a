"""META-001: each relation kills a planted fault that no other relation does."""

from __future__ import annotations

import contextlib

import pytest

from kvproof.conformance.plugin import Unmet
from kvproof.conformance.test_scheduler import test_same_outputs as same_outputs
from kvproof.histories.relations import RELATIONS
from kvproof.records import Result, Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import faults, session_of

OWN = {
    "last_token_published": "cached",
    "no_block_of_one_token": "block-size-1",
    "chunk_at_the_next_block": "chunked",
    "resumes_one_token_early": "preempted",
    "merged_into_the_prompt": "preempted",
    "ids_clamped": "relabelled",
    "parameters_in_common": "alone",
}
"""Planted fault -> the one relation that kills it: with that one muted it would live."""


def judged(where: str) -> list[Result]:
    session = session_of(InProcess(where), "scheduler")
    for relation in RELATIONS:
        with contextlib.suppress(Unmet, pytest.skip.Exception):
            same_outputs(relation, session)
    assert len(session.results) == len(RELATIONS)
    return session.results


@pytest.mark.parametrize("name", OWN)
def test_only_its_own_relation_kills_a_fault(name: str) -> None:
    killers = {r.case for r in judged(f"faulty:{name}") if r.verdict is not Verdict.PASS}
    assert killers == {f"meta/{OWN[name]}"}


@pytest.mark.parametrize(
    "where", ["reference:make_scheduler", "reference:make_scheduler_swap", "plain:make_scheduler"]
)
def test_sound_schedulers_hold_all(where: str) -> None:
    assert {r.verdict for r in judged(where)} == {Verdict.PASS}


def test_without_a_cache_there_is_nothing_to_find() -> None:
    results = {r.case: r.verdict for r in judged("reference:make_scheduler_uncached")}
    assert results.pop("meta/cached") is Verdict.UNSUPPORTED
    assert set(results.values()) == {Verdict.PASS}


def test_every_aspect_has_a_fault_of_its_own() -> None:
    assert set(OWN) == {name for name, fault in faults().items() if fault.requirement == "KVP-META-001"}
    assert set(RELATIONS) - set(OWN.values()) == {"block-size-16"}, "block size is one aspect"

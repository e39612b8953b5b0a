"""The vectors: complete, valid by their schema, passed by sound implementations."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from kvproof import spec
from kvproof.conformance.citing import vectors
from kvproof.conformance.look import FACTORIES
from kvproof.conformance.replay import load_vector
from kvproof.records import Verdict
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import faults, session_of
from kvproof.selftest.make_vectors import examples as made
from kvproof.selftest.make_vectors import make_vector, text

ROOT = spec.find() / "vectors"
PATHS = sorted(ROOT.glob("*/*.json"))
WITHOUT = frozenset(
    {
        *("linear_scan", "batch_rebuilt", "compared_from_the_start", "queue_scanned", "entries_counted"),
        *("hash_of_this_process", "taken_from_the_front", "hits_search_the_line", "looked_up_after_a_miss"),
        *("hash_relied_on", "free_copies_the_list"),
        *(name for name, fault in faults().items() if fault.requirement == "KVP-META-001"),
        *(name for name, fault in faults().items() if fault.requirement.split("-")[1] in ("KERN", "NUM")),
    }
)
"""Planted faults that no single history shows: costs, other processes, relations between runs, kernels."""
CLASSES = {
    "wrong history": ("PREFIX-002", "EVICT-002", "PREFIX-003"),
    "liveness": ("SCHED-004", "SCHED-005", "EVICT-004"),
    "leak": ("POOL-001", "PREFIX-011"),
    "whole prompt": ("PREFIX-004",),
    "failed call changes state": ("POOL-004", "SHARE-003"),
    "double free": ("FREE-001", "FREE-002"),
    "use after free": ("POOL-002",),
    "probe disagrees": ("PROBE-001",),
    "preemption changes output": ("PREEMPT-001",),
    "fork isolation": ("SHARE-002", "PREFIX-005"),
    "message incomplete": ("BATCH-004",),
    "swap": ("SWAP-001", "SWAP-002"),
    "not computed yet": ("PREFIX-006",),
    "block edges": ("TABLE-001", "SLOT-001", "BATCH-005"),
    "rows used again": ("BATCH-002",),
    "abort in any state": ("FREE-004", "SCHED-007"),
    "ranks diverge": ("TP-001", "TP-002", "TP-003", "TP-004", "TP-005", "TP-006", "TP-007"),
    "pool just too small": ("POOL-006", "SCHED-008"),
}
"""Classes of faults met in real implementations, and the requirements they break."""


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_is_valid_and_written_as_the_script_writes(path: Path) -> None:
    schema = json.loads((spec.find() / "schemas" / "case.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(path.read_text(encoding="utf-8")), schema)
    case = load_vector(path)
    assert text(case) == path.read_text(encoding="utf-8")
    assert ROOT / f"{case.id}.json" == path
    (aim,) = case.aim
    assert spec.load().requirements[aim].profile == case.profile
    assert "Fault: " in case.note or "Example: " in case.note


@pytest.mark.parametrize("where", ["reference", "plain"])
def test_sound_implementations_pass_all(where: str) -> None:
    profiles = {c.profile for c in vectors()}
    sessions = {p: session_of(InProcess(f"{where}:{FACTORIES[p]}"), p) for p in profiles}
    results = [r for c in vectors() if c.profile in profiles for r in sessions[c.profile].check(c)]
    assert {r.verdict for r in results} <= {Verdict.PASS, Verdict.UNSUPPORTED}, [
        r.case for r in results if r.verdict is Verdict.FAIL
    ]
    assert sum(r.verdict is Verdict.PASS for r in results) > 100


def test_every_planted_fault_that_a_history_shows_has_one() -> None:
    examples = {case.id.rpartition("/")[2] for case in made()}
    named = {path.stem.split("-", 2)[2] for path in PATHS if path.stem not in examples}
    assert named == set(faults()) - WITHOUT
    assert len(PATHS) >= 60


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_of_fault_has_one(name: str) -> None:
    for requirement in CLASSES[name]:
        assert list(ROOT.glob(f"*/{requirement}-*.json")), requirement


@pytest.mark.parametrize("name", ["keys_not_chained", "shared_tail_written"])
def test_made_again_it_is_the_same(name: str) -> None:
    case = make_vector(name, spec.load().requirements[faults()[name].requirement])
    assert case is not None
    assert text(case) == (ROOT / f"{case.id}.json").read_text(encoding="utf-8")

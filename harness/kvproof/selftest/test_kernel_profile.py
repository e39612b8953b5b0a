"""The kernel profile judged itself: payloads, memory with an end, and misbehaving kernels."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvproof import spec
from kvproof.bench.kernels import open_kernel
from kvproof.checks.kernels import judge_kernel
from kvproof.conformance.look import first_look
from kvproof.conformance.replay import replay_vector
from kvproof.conformance.session import Session, Settings
from kvproof.conformance.smoke import smoke_test
from kvproof.contract import wrong_limits
from kvproof.histories.directed.kernels import templates
from kvproof.histories.kernels import Serves, Unserved, call, drawn
from kvproof.histories.payload import coded, inputs, named, place
from kvproof.oracle.attention import attention
from kvproof.oracle.floats import rounded, ties
from kvproof.records import Observation, Setting
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kernel_cases import case_of
from kvproof.subjects import SubjectError, find
from kvproof.subjects.host import Worker

ROGUES = str(Path(__file__).with_name("rogue_kernels.py"))
EVERYTHING = Serves(
    {"features": ("softcap", "alibi", "window", "k_scale", "v_scale")},
    ("write", "copy_blocks", "prefill", "features", "lse", "empty", "graph"),
)


# ------------------------------------------------------------ payloads and cases


def test_values_spell_the_slot() -> None:
    setting = Setting(lengths=(1,), payload="coded", kv_heads=3, head_size=80)
    slots = np.array([0, 1, 5, 70000])
    values = coded("v", slots, setting)
    for i, slot in enumerate(slots):
        for head in range(3):
            assert named(values[i, head], 3) == (slot, head)
    assert named((values[0, 0] + values[1, 0]) / 2, 3) is None
    keys = coded("k", np.arange(4000), setting).reshape(-1, 80)
    assert (keys[:500] @ keys.T - 80 * np.eye(500, 12000)).max() < 60


@pytest.mark.parametrize(
    "topology", ["identity", "reversed", "shuffled", "interleaved", "shared", "highest", "flush"]
)
def test_tables_own_their_blocks(topology: Any) -> None:
    setting = Setting(lengths=(9, 13, 8), topology=topology, prefix=8)
    tables = place(setting, 20, 4)
    assert [len(t) for t in tables] == [3, 4, 2]
    shared = 2 if topology == "shared" else 0
    blocks = tables[0] + [b for t in tables[1:] for b in t[shared:]]
    assert len(set(blocks)) == len(blocks)
    assert all(t[:shared] == tables[0][:shared] for t in tables)
    assert set(blocks) <= set(range(20))


def test_templates_have_names_of_their_own_and_fit_narrow_limits() -> None:
    assert len({t.id for t in templates()}) == len(templates())
    narrow = Serves(
        {"dtypes": ["bf16"], "head_sizes": [128], "block_sizes": [64], "groups": [8], "features": []}
    )
    fitted = 0
    for template in templates():
        if "/refuse-" not in template.id:  # there, nothing is left out
            assert template.case(EVERYTHING).history
        try:
            case = template.case(narrow)
        except Unserved:
            continue
        fitted += 1
        assert case.kernel is not None
        assert (case.kernel.dtype, case.kernel.head_size, case.kernel.group, case.block_size) == (
            "bf16",
            128,
            8,
            64,
        )
        assert all(n > 0 for n in case.kernel.lengths)
    assert fitted > 25
    assert drawn(3, narrow, True) == drawn(3, narrow, True)


def test_exact_answers_have_no_finding_and_others_do() -> None:
    case = case_of(lengths=(9, 3), aim=("KVP-NUM-001",))
    right = attention(inputs(case, case.history[0]))

    def judged(out: Any, lse: Any) -> list[str]:
        seen = Observation(outcome="ok", value={"out": out, "lse": lse, "torn": [], "changed": []})
        return [f.requirement for f in judge_kernel(case, [seen]).findings]

    assert judged(right.out, right.lse) == []
    assert judged(right.out + 1e-4, right.lse) == ["KVP-NUM-001"]
    assert judged(right.out, right.lse / np.log(2)) == ["KVP-KERN-010"]
    assert judged(np.full_like(right.out, np.nan), None) == ["KVP-NUM-001"]


# ------------------------------------------------------------ kernels that misbehave


def verdicts(name: str, call_limit: float = 20.0, **case: Any) -> tuple[set[tuple[str, str]], str]:
    pytest.importorskip("torch")
    with Worker(find(f"{ROGUES}:{name}"), 20.0) as worker:
        session = Session(worker, spec.load(), Settings(profile="kernel"), first_look(worker, "kernel"))
        worker.call_limit = call_limit
        asked = case_of(lengths=(9, 3), aim=("KVP-NUM-001",)).model_copy(update=case)
        results = session.check(asked)
    return {(r.requirement, r.verdict.value) for r in results}, " ".join(r.reason + r.got for r in results)


@pytest.mark.parametrize(
    ("name", "expected", "words"),
    [
        ("crashes", {("KVP-KERN-006", "FAIL"), ("KVP-NUM-001", "ERROR")}, "signal 11"),
        ("raises", {("KVP-NUM-001", "ERROR")}, "no kernel image"),
        ("refuses", {("KVP-NUM-001", "FAIL")}, "not today"),
        ("answers_one_tensor", {("KVP-NUM-001", "ERROR")}, "(out, lse) is needed"),
        ("answers_another_shape", {("KVP-NUM-001", "ERROR")}, "is needed, as of q"),
        ("stopped_by_a_sanitizer", {("KVP-KERN-008", "FAIL"), ("KVP-NUM-001", "PASS")}, "decode.cuh:120"),
    ],
)
def test_misbehaviour_is_a_verdict(name: str, expected: set[tuple[str, str]], words: str) -> None:
    found, said = verdicts(name)
    assert found == expected
    assert words in said


def test_a_write_into_an_input_is_reported_as_that_only() -> None:
    found, said = verdicts("scales_in_place", stands_for=("KVP-KERN-006",))
    assert found == {("KVP-KERN-016", "FAIL"), ("KVP-NUM-001", "PASS")}
    assert "a write into q" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("misspelt_limit", "'head_size', which is not known; allowed: dtypes, head_sizes"),
        ("unknown_dtype", "'float32', which is not known; allowed: fp32, fp16, bf16, fp8_e4m3"),
    ],
)
def test_a_limit_that_nobody_reads_is_said(name: str, words: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(SubjectError, match=re.escape(words)):
        smoke_test(f"{ROGUES}:{name}", 20.0)
    with pytest.raises(SubjectError, match=re.escape(words)):
        open_kernel(find(f"{ROGUES}:{name}"))


def test_a_capability_that_nobody_reads_is_said() -> None:
    pytest.importorskip("torch")
    _, (fault,) = smoke_test(f"{ROGUES}:misspelt_capability", 20.0)
    assert fault.startswith("capability 'lses' is not known; near it: lse; allowed for a kernel: write, ")


def test_it_is_said_where_the_poison_lies(tmp_path: Path) -> None:
    case = case_of(lengths=(9, 4), num_blocks=5, aim=("KVP-KERN-002",), poison="nan", poisoned="k")
    assert case.kernel is not None
    assert str(case.kernel).endswith(", NaN in the keys of all unused slots")
    path, stream = tmp_path / "x.json", io.StringIO()
    path.write_text(case.model_dump_json(exclude_defaults=True))
    assert not replay_vector(path, "torch_gather", Console(file=stream, width=200))
    tables = inputs(case, case.history[0]).tables
    (spare,) = set(range(5)) - {b for table in tables for b in table}
    lines = [line.strip() for line in stream.getvalue().splitlines()]
    assert lines[2:6] == [
        str(case.kernel),
        f"sequence 0: length 9, blocks {tables[0]}, unused from offset 1 of block {tables[0][-1]} on",
        f"sequence 1: length 4, blocks {tables[1]}",
        f"blocks of nobody: [{spare}]",
    ]


def test_a_wrong_head_is_told_from_a_wrong_slot() -> None:
    """Of 4 query heads on 2 KV heads, some wrong in every row, or all of them wrong in some rows."""
    case = case_of(lengths=(9,), payload="coded", head_size=64, group=2, repeat=5, aim=("KVP-KERN-001",))
    given = inputs(case, case.history[0])
    slots = [given.tables[0][p // 4] * 4 + p % 4 if p < 9 else 99 for p in range(10)]
    assert case.kernel is not None
    right = np.stack(
        [
            [coded("v", np.array(slots[given.targets[r, h]]), case.kernel)[h // 2] for h in range(4)]
            for r in range(5)
        ]
    )
    right[given.targets >= 9] = 0.0

    def judged(wrong: Any) -> list[str]:
        out = right.copy()
        out[wrong] = 0.5
        value: dict[str, Any] = {"out": out, "lse": None, "torn": [], "changed": []}
        return [f.requirement for f in judge_kernel(case, [Observation(outcome="ok", value=value)]).findings]

    assert judged(np.s_[:0]) == []
    assert judged(np.s_[:, 1]) == ["KVP-KERN-004"]
    assert judged(np.s_[2]) == ["KVP-KERN-001"]
    case = case.model_copy(update={"aim": ("KVP-KERN-004",)})
    assert judged(np.s_[2]) == ["KVP-KERN-001"]
    assert judged(np.s_[:, 1]) == ["KVP-KERN-004"]


def test_a_hang_is_a_timeout() -> None:
    assert verdicts("hangs", 0.5)[0] == {("KVP-NUM-001", "TIMEOUT")}


def test_what_is_no_kernel_is_said() -> None:
    pytest.importorskip("torch")
    with pytest.raises(SubjectError, match="NHD or HND"):
        smoke_test(f"{ROGUES}:unknown_layout", 20.0)
    notes, faults = smoke_test("torch_gather", 20.0)
    assert not faults
    assert "prefill" in notes[0]
    assert smoke_test(f"{ROGUES}:raises", 20.0)[1]


# ------------------------------------------------------------ what a kernel declares


def findings(where: str, *names: str) -> set[str]:
    """What fails in the directed cases of these names."""
    pytest.importorskip("torch")
    subject = InProcess(where)
    session = Session(subject, spec.load(), Settings(profile="kernel"), first_look(subject, "kernel"))
    serves = Serves(session.description["limits"], session.gates)
    chosen = [t.case(serves) for t in templates() if t.id.removeprefix("kernel/") in names]
    assert len(chosen) == len(names)
    results = [r for case in chosen for r in session.check(case)]
    assert results
    return {r.requirement for r in results if r.verdict.value != "PASS"}


def test_a_table_has_the_width_that_a_kernel_needs() -> None:
    cases = ("refuse-table-width", "edges-16", "bounds-fp32")
    assert findings(f"{ROGUES}:takes_8_columns", *cases) == set()
    assert findings(f"{ROGUES}:takes_any_columns", *cases) == {"KVP-KERN-009"}
    assert "[8]; allowed: whole numbers from 1 on" in wrong_limits({"table_width_multiple": [8]})
    assert wrong_limits({"table_width_multiple": 8, "fp8_weights": "bf16"}) == ""
    case = case_of(lengths=(9,), table_multiple=8, spare=0)
    assert inputs(case, case.history[0]).table.shape == (1, 8)


def test_weights_of_fp8_are_right_where_they_are_declared() -> None:
    cases = ("values-fp8_e4m3", "edges-fp8_e4m3", "prefill-fp8_e4m3")
    assert findings(f"{ROGUES}:says_weights_are_fp8", *cases) == set()
    assert "KVP-NUM-001" in findings("faulty:weights_in_fp8", *cases)


def test_nan_is_expected_where_its_token_is_seen() -> None:
    given = inputs(case_of(lengths=(9, 3), queries=(4, 2), spoilt=(2,), poisoned="v"), call())
    found = attention(given)
    assert np.isnan(found.out).all((1, 2)).tolist() == [False, False, True, True, True, True]
    assert np.isfinite(found.lse).all()


def test_what_fp8_cannot_hold_is_rounded_to_even_and_to_the_largest() -> None:
    x = np.array([17.0, 19.0, 2.0**-10, 3 * 2.0**-10, 464.0, 1e30, -1e30], np.float32)
    assert rounded("fp8_e4m3", x).tolist() == [16.0, 20.0, 0.0, 2.0**-8, 448.0, 448.0, -448.0]
    assert np.array_equal(rounded("bf16", ties()), ties())


# ------------------------------------------------------------ memory with an end


@pytest.mark.parametrize("side", ["after", "before"])
def test_marks_are_beside_the_tensor(side: str) -> None:
    torch = pytest.importorskip("torch")
    import ctypes

    from kvproof.subjects.arena import Placed

    placed = Placed("x", 4096, side, "cpu")
    tensor = placed.tensor(torch.float32, (32, 32))
    tensor.fill_(1.0)
    assert not placed.torn()
    ctypes.memset(tensor.data_ptr() - 4 if side == "after" else tensor.data_ptr() + 4096, 0, 4)
    assert placed.torn()


def test_a_pool_past_31_bits_costs_what_is_used() -> None:
    torch = pytest.importorskip("torch")
    import psutil

    from kvproof.subjects.arena import Placed

    before = psutil.Process().memory_info().rss
    placed = Placed("pool", 6 << 30, "after", "cpu")
    pool = placed.tensor(torch.float16, (3 << 20, 1024))
    pool[-1] = 2.0
    assert float(pool[-1, -1]) == 2.0
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_verdict_of_a_crash_names_the_memory() -> None:
    case = case_of(lengths=(9,), aim=("KVP-KERN-007",)).model_copy(update={"stands_for": ("KVP-KERN-006",)})
    found = judge_kernel(case, [], "the process ended with signal 11").findings
    assert [f.requirement for f in found] == ["KVP-KERN-006", "KVP-KERN-007"]

"""The benchmark of attention on a kernel of torch calls: inputs, checks, roofline, a run and its files."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvproof import spec
from kvproof.bench.matrix import ATTENTION, Point, load
from kvproof.records import Sample
from kvproof.report import attention as view
from kvproof.report import charts, patience

torch = pytest.importorskip("torch", reason="kernels need torch")

from kvproof.bench import attention, inputs, paged, roofline, run  # noqa: E402
from kvproof.bench.attention import BAR, FOLDED, AttentionJob, Group, groups  # noqa: E402
from kvproof.bench.kernels import KernelSubject, is_kernel, open_kernel  # noqa: E402
from kvproof.claims.measured import _timed  # noqa: E402
from kvproof.selftest import cheating_kernels as cheats  # noqa: E402
from kvproof.selftest import kernel_standin as standin  # noqa: E402
from kvproof.subjects import SubjectError, find  # noqa: E402

ADAPTER = str(Path(standin.__file__))
STEP: dict[str, Any] = {"tokens": 300, "dtype": "fp32", "batch": 2, "heads": "4/2", "head_dim": 16}
SHAPE = paged.Shape(tokens=300, batch=2, query_heads=4, kv_heads=2, head_dim=16, dtype="fp32")


def group(variants: Sequence[tuple[int, str]] = ((16, "shuffled"),), **step: Any) -> Group:
    points = [Point("attention", {**STEP, **step, "block_size": b, "topology": t}) for b, t in variants]
    return Group("attention", tuple(points))


def measured(kernel: Any, some: Group | None = None, **job: Any) -> list[Sample]:
    samples: list[Sample] = []
    some = some or group()
    subject = KernelSubject(type(kernel).__name__, kernel)
    AttentionJob([subject], [some], 0.01, samples.append, **job).measure(some, _timed)
    return samples


@pytest.fixture(autouse=True)
def _small_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small caches and a small probe, and nothing depends on the speed of the machine."""
    monkeypatch.setattr(attention, "PATIENCE", 1e9)
    monkeypatch.setattr(attention, "BAR_PATIENCE", 1e9)
    monkeypatch.setattr(roofline, "PROBE_BYTES", 1 << 20)
    monkeypatch.setattr(roofline, "cache_bytes", lambda device: 1 << 16)
    monkeypatch.setattr(roofline, "SLACK", 1e9)


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize("topology", paged.TOPOLOGIES)
@pytest.mark.parametrize("block", [1, 16, 256])
def test_tables_hold_every_block_once(topology: str, block: int) -> None:
    found = paged.tables(topology, SHAPE, 3, block, "cpu", 0)
    width = -(-300 // block)
    assert [tuple(t.shape) for t in found] == [(2, width)] * 3
    assert {t.dtype for t in found} == {torch.int32}
    assert sorted(torch.cat(found).flatten().tolist()) == list(range(3 * 2 * width))
    assert (width * block) * 6 * 32 <= paged.fill(SHAPE, 3, "cpu", 0).keys.numel()


def test_topologies_are_what_their_names_say() -> None:
    identity, interleaved = (
        paged.tables(t, SHAPE, 1, 64, "cpu", 0)[0].tolist() for t in ("identity", "interleaved")
    )
    assert identity == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert interleaved == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]
    with pytest.raises(ValueError, match="allowed are identity, shuffled, interleaved"):
        paged.tables("sorted", SHAPE, 1, 64, "cpu", 0)


@pytest.mark.parametrize("dtype", paged.DTYPES)
def test_memory_is_random_and_no_chunk_repeats(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged, "CHUNK", 1 << 12)
    memory = paged.fill(paged.Shape(300, 2, 4, 2, 16, dtype), 2, "cpu", 0)
    rows = memory.keys.float().view(-1, 16)
    assert bool(torch.isfinite(rows).all())
    assert 0.9 < float(rows.std()) < 1.1
    assert not torch.equal(rows[:256], rows[256:512])
    assert not torch.equal(memory.keys.float(), memory.values.float())


def test_layouts_are_views_of_one_memory() -> None:
    memory = paged.fill(SHAPE, 1, "cpu", 0)
    nhd, _ = memory.cache("NHD", 16)
    hnd, _ = memory.cache("HND", 16)
    assert nhd.shape[1:] == (16, 2, 16)
    assert hnd.shape[1:] == (2, 16, 16)
    table = torch.tensor([3, 1], dtype=torch.int32)
    assert torch.equal(paged.positions(nhd, "NHD", table, 20, 1)[17], nhd[1, 1, 1])
    assert torch.equal(paged.positions(hnd, "HND", table, 20, 1)[17], hnd[1, 1, 1])


def test_bytes_that_must_move() -> None:
    kv = 2 * 2 * 300 * 2 * 16 * 4
    assert SHAPE.kv_bytes == kv
    assert SHAPE.moved(19) == kv + 2 * (2 * 4 * 16 * 4) + 4 * 2 * 20


def test_inputs_turn_until_the_cache_is_cold() -> None:
    assert roofline.rotations(1 << 17, "cpu") == 1
    assert roofline.rotations(1 << 16, "cpu") == 3
    assert roofline.rotations(1 << 12, "cpu") == 33


# ---------------------------------------------------------------- measuring


@pytest.mark.parametrize("kernel", [standin.Gather(), standin.HeadMajor(), standin.Prepared()])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_right_kernel_has_a_time_a_share_and_ratios(kernel: Any, dtype: str) -> None:
    samples = measured(kernel, group(((16, "shuffled"), (1, "identity")), dtype=dtype))
    names = [s.implementation for s in samples]
    assert names == [BAR, FOLDED, type(kernel).__name__, type(kernel).__name__]
    for s in samples:
        assert s.rounds >= attention.SLOW_ROUNDS, s.note
        assert s.low <= s.median <= s.high
        assert s.counters["roofline"] > 0
        assert s.counters["error"] < 1e-2
    for s in samples[2:]:
        assert s.counters["ratio_low"] <= s.counters["ratio"] <= s.counters["ratio_high"]
        assert ("prepared" in s.note) is isinstance(kernel, standin.Prepared)


def test_a_wrong_kernel_has_no_number() -> None:
    for kernel, said in (
        (standin.Shifted(), "against exact attention"),
        (standin.Drifting(), "relative error inf"),
    ):
        sample = measured(kernel)[-1]
        assert sample.rounds == 0
        assert sample.note.startswith("INVALID"), sample.note
        assert said in sample.note


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (standin.Idle, "against exact attention"),
        (cheats.KeepsTheGathered, "against exact attention"),
        (cheats.KeepsTheTable, "against exact attention"),
        (cheats.LeavesOutAHead, "against exact attention"),
        (cheats.LeavesOutAHeadLater, "against exact attention"),
        (cheats.LeavesOutHalf, "against exact attention"),
        (cheats.Writes, "it has written to its queries"),
        (cheats.WrongLse, "lse is off by"),
        (cheats.NoLse, "lse is NoneType"),
    ],
)
def test_a_kernel_that_cheats_has_no_number(make: Any, said: str, dtype: str) -> None:
    sample = measured(make(), group(dtype=dtype))[-1]
    assert sample.rounds == 0
    assert sample.note.startswith("INVALID"), sample.note
    assert said in sample.note


def test_five_processes_compare_all_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each a fifth, whatever the few that are compared in every round are."""
    compared: list[tuple[int, int | slice]] = []

    def note(self: Any, shape: Any, turn: int, row: int, heads: int | slice, *_: Any) -> None:
        compared.append((row, heads))

    monkeypatch.setattr("kvproof.bench.lanes.Lane._compare", note)
    job: dict[str, Any] = {"processes": 5}
    rounds = [measured(standin.Gather(), turn=turn, **job)[-1].rounds for turn in range(5)]
    assert all(rounds)
    whole = [(row, heads.start) for row, heads in compared if isinstance(heads, slice)]
    assert sorted(whole) == sorted([(0, 0), (0, 2), (1, 0), (1, 2)] * 3)  # two controls and the kernel
    assert sum(isinstance(heads, int) for _, heads in compared) >= 3 * 5


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_a_renewed_position_is_about_half_of_its_answer(layout: str) -> None:
    memory = paged.fill(SHAPE, 1, "cpu", 0)
    order = paged.tables("shuffled", SHAPE, 1, 16, "cpu", 0)
    before = order[0].clone()
    given = inputs.Inputs(memory, [torch.zeros(2, 4, 16)], order, 16)
    given.renew([0], layout, reorder=True)
    first, lse = given.exact(layout, 0, 1, slice(2, 4))
    assert lse.shape == (2,)
    assert paged.distance(first[1:], given.exact(layout, 0, 1, 3)[0][None]) < 1e-5
    assert sorted(order[0].flatten().tolist()) == list(range(2 * 19))
    swapped = int((order[0] != before).sum())
    assert swapped == 2
    given.renew([0], layout, reorder=False)
    assert torch.equal(order[0], before)
    assert paged.distance(given.exact(layout, 0, 1, slice(2, 4))[0], first) > 0.1


def test_a_time_below_the_floor_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SLACK", 1e-9)
    sample = measured(standin.Gather(), group())[-1]
    assert sample.rounds == 0
    assert "the bytes alone take" in sample.note


def test_what_a_kernel_does_not_serve_is_unsupported() -> None:
    sample = measured(standin.Gather(), group(dtype="fp16"))[-1]
    assert sample.note == "unsupported: dtype fp16: it serves fp32, bf16"
    assert measured(standin.Gather(), group(dtype="fp8_e4m3"))[0].implementation == "Gather"


def test_a_size_that_memory_does_not_hold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_free", lambda device: 1 << 10)
    (sample,) = measured(standin.Gather())
    assert "left out: needs" in sample.note


def test_what_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "PATIENCE", 1e-9)
    first, second = measured(standin.Gather(), group(((16, "shuffled"), (1, "shuffled"))))[2:]
    assert first.rounds > 0
    assert second.note.startswith("unsupported: left out: a step of 300 tokens takes about")
    needed = int(second.note.split("--patience ")[1].split()[0])
    assert patience.more_time([first, second]).endswith(f"--patience {needed} measures all")
    patient = measured(standin.Gather(), group(((16, "shuffled"), (1, "shuffled"))), patience=1e6 * needed)
    assert all(s.rounds > 0 for s in patient)
    assert patience.more_time(patient) == ""


def test_a_process_may_have_a_budget_of_its_own() -> None:
    """So many processes share the least number of rounds, and no step here takes 0.1 s."""
    shared, own = (measured(standin.Gather(), processes=5, own_s=s)[-1] for s in (None, 100.0))
    assert shared.rounds < own.rounds == attention.MAX_ROUNDS


def test_a_slow_lane_gets_few_rounds_spread_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def pedantic(target: Any, setup: Any, teardown: Any, rounds: int) -> list[float]:
        for _ in range(rounds):
            (lane,), _ = setup()
            order.append(lane.name)
            target(lane)
            teardown(lane)
        return [1.0] * rounds

    job = AttentionJob([KernelSubject("Gather", standin.Gather())], [group()], 0.01, lambda _: None)
    lanes: list[Any] = []
    warm_up = AttentionJob._warm_up

    def fixed(self: AttentionJob, lane: Any, some: Group, turns: int) -> None:
        warm_up(self, lane, some, turns)
        lane.rounds = 3 if lane.name == "Gather" else 9
        lanes.append(lane)

    monkeypatch.setattr(AttentionJob, "_warm_up", fixed)
    job.measure(job.points[0], pedantic)
    assert order.count("Gather") == 3
    at = [i / len(order) for i, name in enumerate(order) if name == "Gather"]
    assert at[0] < 0.4 < at[1] < 0.7 < at[2]


def test_outputs_of_earlier_rounds_are_not_kept() -> None:
    kept: list[weakref.ref[Any]] = []
    most = 0

    class Watched(standin.Gather):
        def decode(self, *arguments: Any) -> tuple[Any, None]:
            nonlocal most
            most = max(most, sum(out() is not None for out in kept))
            out, _ = super().decode(*arguments)
            kept.append(weakref.ref(out))
            return out, None

    measured(Watched())
    assert len(kept) > 5
    assert most <= 1


# ---------------------------------------------------------------- matrix, adapters, a whole run


def test_points_that_differ_in_blocks_only_are_one_group() -> None:
    points = [p for p in load(spec.find(), None, True, ["kernel"]) if p.cell == "attention"]
    some = groups(points)
    assert {p.cell for p in load(spec.find(), None, True, ["kernel"])} == set(ATTENTION)
    assert sum(len(g.points) for g in some) == len(points)
    assert len({str(g) for g in some}) == len(some) < len(points)
    assert len(load(spec.find(), None, True, ["kernel"], device=True)) > len(points)


def test_kernels_are_told_from_managers() -> None:
    assert is_kernel(find(f"{ADAPTER}:make"))
    assert not is_kernel(find("reference"))
    with pytest.raises(SubjectError, match="a kernel has capabilities, layout, limits, decode; this has not"):
        open_kernel(find("kvproof.subjects:installed"))


def test_a_run_writes_table_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "load", lambda *_: [*group(((16, "identity"), (64, "shuffled"))).points])
    assert (
        run.run([f"{ADAPTER}:make"], None, [], 16, None, True, 0, tmp_path, True, "kernel", processes=1) == 0
    )
    (folder,) = tmp_path.iterdir()
    text = (folder / "bench.md").read_text()
    assert "## attention" in text
    assert "| SDPA folded" in text
    assert "In all rows: numbers fp32, tokens 300, batch 2, heads 4/2, dim 16." in text
    kinds = [json.loads(line)["kind"] for line in (folder / "bench.jsonl").read_text().splitlines()]
    assert kinds == ["header", *["sample"] * 4, "footer"]


def test_a_wrong_kernel_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "load", lambda *_: [*group().points])
    wrong = [f"{ADAPTER}:make_shifted"]
    assert run.run(wrong, None, [], 16, None, True, 0, tmp_path, True, "kernel", processes=1) == 1


def test_the_chosen_cells_say_who_is_measured_by_default() -> None:
    kernels, managers = list(run.KERNELS["cpu"]), list(run.DEFAULT)
    assert run._defaults(None, None, "cpu") == [*managers, *kernels]
    assert run._defaults(None, ["fork"], "cpu") == managers
    assert run._defaults(None, ["attention"], "cpu") == kernels
    assert list(run._defaults("kernel", None, "cuda")) == list(run.KERNELS["cuda"])


def test_a_broken_package_ends_the_run_only_if_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ImportError('its library is missing')\n")
    monkeypatch.setattr(run, "load", lambda *_: [*group().points])
    monkeypatch.setattr(run, "KERNELS", {"cpu": (str(broken) + ":make", f"{ADAPTER}:make"), "cuda": ()})
    assert run.run([], None, [], 16, None, True, 0, tmp_path / "runs", True, "kernel", processes=1) == 0
    assert "its library is missing" in capsys.readouterr().out
    named = [str(broken) + ":make"]
    assert run.run(named, None, [], 16, None, True, 0, tmp_path / "runs", True, "kernel") == 2


def test_a_manager_is_no_kernel(tmp_path: Path) -> None:
    assert run.run(["reference"], None, [], 16, None, True, 0, tmp_path, True, "kernel") == 2


# ---------------------------------------------------------------- report


def sample(name: str, block: Any = 16, tokens: Any = 1024, **more: float) -> Sample:
    order = "shuffled" if isinstance(block, int) else "contiguous"
    return Sample(
        implementation=name,
        cell="attention",
        parameters={**STEP, "tokens": tokens, "block_size": block, "topology": order},
        unit="us/step",
        median=1500.0,
        low=1400.0,
        high=1600.0,
        rounds=5,
        counters={"roofline": 0.5, "gbps": 10.0, "memory_gbps": 20.0} | more,
    )


def test_the_table_has_a_row_a_point_and_the_bars_beside() -> None:
    ratios = {"ratio": 0.25, "ratio_low": 0.2, "ratio_high": 0.3}
    folded = {"ratio_folded": 0.5, "ratio_folded_low": 0.4, "ratio_folded_high": 0.6}
    none = sample("other", 64).model_copy(update={"rounds": 0, "note": "unsupported: left out: slow"})
    samples = [sample("SDPA", "none"), sample("ours", **ratios, **folded), sample("ours", 64), none]
    data, same = view.table(samples, interval=True)
    assert list(data.columns) == ["block", "ours", "other", "SDPA"]
    assert data.to_numpy().tolist() == [
        ["16", "1.5 ms, 50%, 0.25x (0.2-0.3), folded 0.5x (0.4-0.6)", "", "1.5 ms, 50%"],
        ["64", "1.5 ms, 50%", "unsupported: left out: slow", "1.5 ms, 50%"],
    ]
    assert same == "numbers fp32, tokens 1,024, batch 2, heads 4/2, dim 16, order shuffled"
    assert view.line(samples[1]) == (
        "fp32 2 x 1,024, 4/2 heads of 16, block 16 shuffled: ours 1.5 ms, 50%, 0.25x (0.2-0.3), "
        "folded 0.5x (0.4-0.6)"
    )
    assert view.table(samples, interval=False)[0]["other"].tolist() == ["", "left out"]


def test_charts_are_drawn_where_their_packages_are(tmp_path: Path) -> None:
    samples = [sample(n, b, t) for t in (256, 512) for n, b in (("SDPA", "none"), ("ours", 1), ("ours", 16))]
    written = charts.draw(samples, tmp_path)
    if charts.missing():
        assert written == []
        pytest.skip(f"no charts without {', '.join(charts.missing())}")
    assert [p.name for p in written] == [
        f"attention-{name}.{kind}" for name in ("heat-map", "curves") for kind in charts.FORMATS
    ]
    assert all(p.stat().st_size > 1000 for p in written)
    assert charts.draw(samples[:3], tmp_path / "nothing") == []

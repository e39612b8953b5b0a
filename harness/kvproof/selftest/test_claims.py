"""The chapter's claims: what is counted, and what is said where something cannot run."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from kvproof import gpu, spec
from kvproof.claims import Claim, Verdict, measured
from kvproof.claims.counted import counted
from kvproof.cli import main
from kvproof.subjects import find

HOLDS = {
    "500 tokens take 32 blocks of 16",
    "200 more take 12 (the comment)",
    "of 100, 200, 150 tokens in 20 blocks two enter",
    "256 tokens take 16 blocks on each of 4 GPUs",
    "prompts that share 120 of 160 tokens share pages",
    "O(n / block_size) comparisons for O(n)",
    "a table of 1,024 tokens is 256 bytes",
    "1,000 tables are 256 KB",
    "48 KB hold 12,288 entries",
    "tables of 256 to 65,536 tokens fit whole",
}
FOUND = {
    "200 more take 12 (the code)": "13",
    "80 % of 24 GiB are some 61,440 blocks": "78,643",
    "262,144 bytes a block are all of its KV": "2,457",
    "prompts that share 120 of 160 tokens share pages": "7 blocks, 112 tokens, and 3 new ones",
    "an equal prompt is matched to its end": "144",
    "tables add 0.01 to 0.1 % to the KV": "0.00005 %",
    "48 KB hold 12,288 entries": "196,608",
    "an append that fails changes nothing": "reference 0, the code 3",
}


def test_what_is_counted() -> None:
    claims = {c.claim: c for c in counted()}
    assert {c.claim for c in claims.values() if c.verdict is Verdict.HOLDS} == HOLDS
    assert all(c.verdict in (Verdict.HOLDS, Verdict.FAILS) for c in claims.values())
    for claim, text in FOUND.items():
        assert text in claims[claim].found


def test_every_section_of_the_chapter_is_there() -> None:
    sections = {c.section for c in counted()} | {c.section for c in measured._techniques()}
    assert sections == {f"3.2.{n}" for n in range(1, 8)}


def test_without_a_gpu_and_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "has_gpu", lambda: False)
    monkeypatch.setattr(measured, "_run", lambda *_: ([], "cpu_kernel: no g++"))
    found = list(measured.measured())
    assert [c.verdict for c in found] == [Verdict.NOT_RUN] * 2 + [Verdict.GPU] * 6
    assert found[0].found == "cpu_kernel: no g++"


def test_json_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [Claim("3.2.1", "a", "1", "1", Verdict.HOLDS), Claim("3.2.7", "b [x]", "2", "3", Verdict.FAILS)]
    monkeypatch.setattr("kvproof.claims.counted.counted", lambda: some[1:])
    monkeypatch.setattr("kvproof.claims.measured.measured", lambda: some[:1])
    shown = CliRunner().invoke(main, ["claims"])
    assert shown.exit_code == 0
    assert "2 claims: 1 holds, 1 does not hold" in shown.output
    assert "b [x]" in shown.output
    told = json.loads(CliRunner().invoke(main, ["claims", "--json"]).stdout)
    jsonschema.validate(
        told, json.loads((spec.find() / "schemas" / "document.json").read_text(encoding="utf-8"))
    )
    assert (told["command"], told["exit_status"], len(told["claims"])) == ("claims", 0, 2)
    assert told["claims"][1] == {
        "section": "3.2.7",
        "claim": "b [x]",
        "said": "2",
        "found": "3",
        "verdict": "does not hold",
    }


# ---------------------------------------------------------------- the run on a GPU machine


def test_without_a_gpu_one_line_says_what_was_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "missing", lambda: {"NVIDIA GPU": "run it on a machine that has one"})
    assert gpu.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("not here: NVIDIA GPU")
    assert "racecheck" in line


def test_steps_that_fail_or_hang_do_not_stop_the_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "LEAST_S", 0.01)
    todo = [
        gpu.Step("wrong", ("python3", "-c", "raise SystemExit(3)"), 60),
        gpu.Step("hung", ("python3", "-c", "import time; time.sleep(60)"), 1),
        gpu.Step("right", ("python3", "-c", "print('seen')"), 60),
        gpu.Step("absent", ("x",), 60, "no-such-program"),
    ]
    assert gpu.run(todo) == 1
    out = capfd.readouterr().out
    assert "seen" in out
    last = [line.split("s  ", 1) for line in out.splitlines()[-4:]]
    assert [name.split()[0] for name, _ in last] == ["wrong", "hung", "right", "absent"]
    ends = ["FAILED: exit status 3", "FAILED: not done in 1 s", "passed", "not run: no no-such-program"]
    assert [how for _, how in last] == ends
    assert gpu.run(todo[2:3], total_s=0.0) == 0
    assert "no time left" in capfd.readouterr().out


def test_what_a_run_has_written_is_named_with_its_place(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.jsonl").touch()
    said = gpu.to_commit(tmp_path, {tmp_path / "old" / "bench.jsonl"}, "NVIDIA H200")
    assert "results/baselines/nvidia-h200/" in said
    assert said.endswith(f": {tmp_path / 'new' / 'bench.jsonl'}")


def test_the_run_fits_into_eight_minutes() -> None:
    assert gpu.TOTAL_S < 480


def test_the_small_case_on_the_cpu() -> None:
    pytest.importorskip("torch")
    if absent := find("cpu_kernel").missing():
        pytest.skip(f"no {', '.join(absent)}")
    assert gpu.small_case("cpu_kernel", "cpu") == 0

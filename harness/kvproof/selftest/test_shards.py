"""Parts of a run, put together: as the whole run, nothing lost and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from kvproof import spec
from kvproof.bench.matrix import ATTENTION, load, part
from kvproof.cli import main
from kvproof.report.results import ResultFile, ResultsError, read
from kvproof.report.summary import summarize
from kvproof.shards import put_together

ASKED = [
    "conformance",
    "--impl",
    "faulty:tail_of_the_former_owner",
    "--requirement",
    "BATCH",
    "--histories",
    "40",
]
PARTS = 3


def _run(results: Path, *more: str) -> ResultFile:
    done = CliRunner().invoke(main, [*ASKED, "--quiet", "--results", str(results), *more])
    assert done.exit_code in (0, 1, 3), done.output
    (path,) = results.rglob("*.jsonl")
    return read(path)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[ResultFile]:
    folder = tmp_path_factory.mktemp("parts")
    return [_run(folder / str(i), "--shard", f"{i}/{PARTS}") for i in range(1, PARTS + 1)]


def test_the_parts_together_are_the_run(parts: list[ResultFile], tmp_path: Path) -> None:
    whole = _run(tmp_path / "whole")
    (merged,) = put_together(parts)
    assert sorted(c.id for c in merged.cases) == sorted(c.id for c in whole.cases)
    assert merged.footer.cases == whole.footer.cases
    assert (merged.footer.must_run, merged.footer.failed, merged.footer.exit_status) == (
        whole.footer.must_run,
        whole.footer.failed,
        1,
    )
    path = merged.write(tmp_path)
    assert summarize(read(path)).verdicts == summarize(whole).verdicts


def test_the_command_writes_the_whole_run(parts: list[ResultFile], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["merge", *[str(p.path) for p in parts], "--into", str(tmp_path / "out")])
    assert done.exit_code == 1, done.output
    assert read(tmp_path / "out" / "faulty_tail_of_the_former_owner.jsonl").header.shard == ""


def test_missing_repeated_and_foreign_parts_are_refused(parts: list[ResultFile], tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="lacks 2/3"):
        put_together([parts[0], parts[2]])
    with pytest.raises(ResultsError, match="2/3 more than once"):
        put_together([*parts, parts[1]])
    other = _run(tmp_path, "--shard", "2/3", "--seed", "9")
    with pytest.raises(ResultsError, match="seed differs"):
        put_together([parts[0], other, parts[2]])


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "x"])
def test_a_part_that_is_none_is_refused(wrong: str) -> None:
    done = CliRunner().invoke(main, ["conformance", "--shard", wrong])
    assert done.exit_code == 2
    assert "from 1 to n" in done.output


@pytest.mark.parametrize("quick", [True, False])
def test_every_point_of_the_matrix_is_in_one_part(quick: bool) -> None:
    points = load(spec.find(), None, quick)
    found = [p for i in range(1, 8) for p in part(points, (i, 7))]
    assert sorted(map(str, found)) == sorted(map(str, points))
    for i in range(1, 8):  # what a growth or a bar needs is not torn apart
        mine = part(points, (i, 7))
        for cell in {p.cell for p in mine} - set(ATTENTION):
            assert [p for p in points if p.cell == cell] == [p for p in mine if p.cell == cell]

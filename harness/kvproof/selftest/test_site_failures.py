"""What a page shows of a failure: each operation and what was seen, the exception at its step; in bounds."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

from click.testing import CliRunner

from kvproof import spec
from kvproof.cli import main
from kvproof.conformance.replay import load_vector
from kvproof.conformance.session import Session, Settings
from kvproof.conformance.shortest import shortest
from kvproof.records import Case, Operation, Result, Verdict
from kvproof.report.results import read
from kvproof.report.site import failures, pages
from kvproof.report.steps import told
from kvproof.report.summary import Failure, summarize
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.result_files import BAD, HISTORY, SEEN, judged
from kvproof.subjects.host import Outcome

ROGUES = Path(__file__).with_name("rogues.py")


def first(folder: Path, impl: str, requirement: str, *more: str) -> Failure:
    """The first failure of a run of an implementation, as it was written."""
    where = ["--impl", impl, "--requirement", requirement, "--histories", "5", "--results", str(folder)]
    CliRunner().invoke(main, ["conformance", *where, "--quiet", *more])
    (file,) = folder.rglob("*.jsonl")
    return summarize(read(file)).failures[0]


def test_an_exception_stands_at_its_step(tmp_path: Path) -> None:
    failure = first(tmp_path, f"{ROGUES}:raises", "TABLE-001")
    *before, end = failures.operations(failure)
    assert re.search(r"→ error: ZeroDivisionError: .* at rogues\.py:\d+  <- here", end), end
    assert before
    assert all("→ ok" in line for line in before), before
    drawn = json.loads(failures.drawn(failure.result))
    assert drawn["steps"][drawn["at"]]["outcome"].startswith("error: ")
    assert drawn["steps"][drawn["at"]]["tables"] == drawn["steps"][drawn["at"] - 1]["tables"], "as before it"


class Ends(InProcess):
    """Never answers the last call of a long history, and dies in that of a short one."""

    def run(self, case: Case) -> Outcome:
        seen = super().run(case).observations[:-1]
        last = len(case.history) - 1
        if last > 2:
            return Outcome(seen, "timeout", last, "no answer within 10 s")
        return Outcome(seen, "died", last, "exit status 7")


def test_a_hang_is_shown_though_an_exception_had_a_shorter_history(tmp_path: Path) -> None:
    subject = Ends("plain")
    session = Session(subject, spec.load(), Settings(folder=tmp_path), subject.describe(8, 4))
    add, append = HISTORY[0], Operation(op="append", seq=0, tokens=(5,))
    for n in (1, 3, 2):
        history = (add, *[append] * n)
        case = Case(id=f"c{n}", aim=("KVP-TABLE-001",), num_blocks=8, block_size=4, history=history)
        session.check(case)
    (result,) = shortest(session)
    assert (result.verdict, result.case) == (Verdict.TIMEOUT, "c3")
    assert load_vector(Path(result.vector)).history == result.history
    *before, end = failures.operations(Failure(spec.load().requirements[result.requirement], result, ()))
    assert end.endswith("→ TIMEOUT: no answer within 10 s  <- here")
    assert all("→ ok" in line for line in before), before


def test_of_ranks_each_rank_is_shown(tmp_path: Path) -> None:
    failure = first(tmp_path, "faulty:one_step_skipped", "TP-002", "--profile", "ranks")
    lines = failures.operations(failure)
    assert "Diverged: rank 1" in "\n".join(lines)
    assert sum("rank 0: epoch" in line for line in lines) == len(failure.result.history)
    assert re.search(r"rank 1: epoch 1  tables \{0: \[\d", "\n".join(lines))


def test_of_two_runs_that_differ_the_plans_are_shown(tmp_path: Path) -> None:
    failure = first(tmp_path, "faulty:last_token_published", "META-001", "--profile", "scheduler")
    r = failure.result
    assert r.step is not None
    lines = failures.operations(failure)
    assert sum("<- here" in line for line in lines) == 1
    assert "plan 0: [0, " in "\n".join(lines)
    wrong = re.match(r"request (\d+): \[", r.got)
    assert wrong, r.got
    assert f"finished [{wrong[1]}]" in "\n".join(told(r.observed[r.step].value))


def test_known_exceptions_are_shown_as_they_were_got() -> None:
    known = Result(
        case="c",
        requirement=BAD,
        verdict=Verdict.XFAIL,
        reason="it is slow",
        got="TIMEOUT: no answer within 10 s",
        history=HISTORY,
        observed=SEEN[:1],
        step=1,
    )
    failure = Failure(spec.load().requirements[BAD], known, ())
    assert failures.operations(failure)[-1].endswith("→ TIMEOUT: no answer within 10 s  <- here")


def test_a_page_has_its_share_and_each_history_once(tmp_path: Path) -> None:
    ids = [r.id for r in spec.load().requirements.values() if (r.profile, r.status) == ("manager", "active")]
    for i in range(20):
        judged(tmp_path / f"{i}.jsonl", f"engine-{i}", ids)
    pages.build(sorted(tmp_path.glob("*.jsonl")), tmp_path / "site")
    page = unescape((tmp_path / "site" / "implementations" / "engine-7-manager.html").read_text("utf-8"))
    assert page.count("<article") == 500 // 20
    assert page.count('"steps":[') == 1
    assert page.count("add(seq=0, tokens=[1, 2, 3, 4]) → ok") == 1
    assert page.count("The same history as of") == 500 // 20 - 1
    assert page.count("(history: ") == len(ids) - 500 // 20
    for key in ids:
        assert f'id="{key}"' in page, "every link to a failure finds it"
    assert page.count('id="EVICT"') == 1


def test_shares_are_bounded() -> None:
    assert failures.shares([]) == (10, failures.MOST_BYTES)
    assert failures.shares([300, 0, 100]) == (300, failures.MOST_BYTES // 2), "all of them"
    assert failures.shares([120] * 50) == (10, failures.MOST_BYTES // 50)
    assert failures.shares([400, 30, 20]) == (400, failures.MOST_BYTES // 3)

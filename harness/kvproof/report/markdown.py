"""A conformance file as Markdown, for the summary page of a CI run."""

from __future__ import annotations

from kvproof.records import Verdict
from kvproof.report.results import ResultFile
from kvproof.report.summary import Failure, Summary, summarize


def render(file: ResultFile) -> str:
    """The whole report of a conformance file.

    Raises:
        ResultsError: see `summarize`.
    """
    summary = summarize(file)
    header, footer = file.header, file.footer
    lines = [
        f"# {summary.headline}",
        "",
        f"kvproof {header.environment.kvproof}, specification {header.spec}, profile {header.profile}, "
        f"seed {header.seed}; {summary.counted}, {footer.must_run} MUST requirements run, "
        f"{footer.failed} failed, in {footer.seconds:.1f} s.",
        "",
        f"Capabilities: {', '.join(sorted(header.capabilities)) or 'none'}.",
        "",
        *_table(summary),
    ]
    if first := summary.first_look():
        lines += ["", f"{first}."]
    if margins := summary.margins():
        lines += ["", f"Largest error over its bound: {margins}."]
    must = [failure for failure in summary.failures if not failure.advisory]
    should = [failure for failure in summary.failures if failure.advisory]
    for title, failures in (("Failures", must), ("Advice: a SHOULD that does not hold", should)):
        if failures:
            lines += ["", f"## {title}"]
            for failure in failures:
                lines += ["", *_failure(failure)]
    if summary.known:
        lines += ["", "## Known failures", ""]
        for failure in summary.known:
            reason = failure.result.reason or "no reason was given"
            lines.append(f"- {failure.requirement.id} {failure.requirement.title}: {_inline(reason)}")
    if summary.not_run or header.environment.missing or footer.left_out:
        lines += ["", "## What did not run, and why", ""]
        for name, what in sorted(header.environment.missing.items()):
            lines.append(f"- not here: {name} ({_inline(what)})")
        for item in summary.not_run:
            lines.append(
                f"- {item.requirement.id} {item.requirement.title}: {item.verdict}: {_inline(item.why)}"
            )
        lines += [f"- {_inline(line)}" for line in summary.left_out()]
    if summary.planned:
        lines += ["", "## Planned", "", "Stated in the specification, not tested yet:", ""]
        lines += [f"- {r.id} {r.title}" for r in summary.planned]
    lines += ["", f"Run again: `{header.command}`"]
    return "\n".join(lines) + "\n"


def _table(summary: Summary) -> list[str]:
    head, rows = summary.table()
    rule = ["---"] + ["--:"] * (len(head) - 1)
    return ["| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)]


def _failure(failure: Failure) -> list[str]:
    r, result = failure.requirement, failure.result
    lines = [f"### {result.verdict} {r.id}: {r.title}", "", r.text, ""]
    if result.verdict is Verdict.XPASS:
        lines += [f"Expected to fail, and holds: take it off the list of known failures. {result.reason}", ""]
    elif result.reason:
        lines += [_inline(result.reason), ""]
    pool = failure.pool()
    lines.append(f"Case `{result.case}`" + (f", {pool}:" if pool else ":"))
    # A fence longer than any run of backquotes inside; histories may hold any string.
    block = failure.history()
    block += [f"expected: {result.expected}"] if result.expected else []
    block += [f"got:      {result.got}"] if result.got else []
    if block:
        fence = "```"
        while any(fence in line for line in block):
            fence += "`"
        lines += ["", fence + "text", *block, fence]
    if result.after:
        lines += ["", f"May follow from an earlier finding in this history: {_inline(result.after)}."]
    if result.replay:
        lines += ["", f"Replay: `{result.replay}`"]
    if failure.others:
        shown = ", ".join(f"`{name}`" for name in failure.others[:5])
        more = len(failure.others) - 5
        lines += ["", f"Also in {shown}" + (f" and {more} more." if more > 0 else ".")]
    return lines


def _inline(text: str) -> str:
    return " ".join(text.split())

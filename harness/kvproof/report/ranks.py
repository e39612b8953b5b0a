"""Samples of ranks as tables: a step by number of ranks, its bytes, many ranks, a trace with a loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.records import Sample
from kvproof.report.attention import duration

SYNC, STEP, SCALE, PRESSURE = CELLS = ("ranks_sync", "ranks_step", "ranks_scale", "ranks_pressure")
TITLES = {SYNC: "processes", STEP: "counted", SCALE: "many", PRESSURE: "one is killed"}
PIPE_WIDTH = 140
BYTES = ("tokens", "tables", "digest", "frame", "head", "hit")
"""What `message_parts` may name."""
OTHER = BYTES[3:]
FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests: all, finished, refused", ("requests", "finished", "refused")),
    ("tokens: prompts, of them cached, sampled", ("prompt_tokens", "cached_tokens", "output_tokens")),
    ("blocks a rank; most requests in a step", ("capacity_blocks", "most_running")),
    ("steps of the scheduler, decisions of the ranks", ("steps", "decisions")),
    ("preemptions, resumes", ("preemptions", "resumes")),
    ("killed: rank, at decision; ranks left", ("killed_rank", "killed_at", "survivors")),
    ("decisions taken again", ("taken_again",)),
    ("reads that were right", ("reads",)),
    ("us a decision, on this machine", ("us_decision",)),
)
NOTES = {
    SYNC: """\
Seen by the driver, in processes on one machine; with more ranks than cores they take turns, and the
time grows with the work of all. x: of one rank, which sends nothing. Every step is prepared and then
committed on all ranks; an admission agrees on the hit before.""",
    STEP: """\
All ranks in one object over a network that counts; the time is that of all of them on one core. Bytes
are those to and from one rank in one step; other: heads, checksums, hits. Changed: entries of tables.
Whole tables: 4 bytes for each entry of all sequences, and nothing else. A decode step whose tables take
more than 8 bytes a changed entry and 64 besides is INVALID. The blocks are new here and lie in a row;
scattered ones take up to 7 bytes an entry.""",
    SCALE: """\
The protocol itself over a network that counts, all ranks in one process; in brackets what the model on
paper says: two rounds of a question to every rank and its answer, and a third for an admission. The
tree is on paper only: nobody here has one. Times are assumptions put into a formula, no measurement;
both stand in the matrix.""",
    PRESSURE: """\
All requests wait from the start. Every rank has a KV memory; each token that is sampled depends on what
the ranks read there, and at the first position of a block all of the context is read. Once half of the
requests are done a rank ends in the middle of a decision: a worker has committed and not answered, the
driver has prepared everywhere and told one of the others to commit (as a process, none). Every request
got exactly the tokens that its prompt leads to, the survivors ended alike, and no block was lost, or
the column is INVALID.""",
}


def table(samples: Sequence[Sample]) -> pd.DataFrame:
    """The samples of one cell."""
    make: Mapping[str, Callable[[Sequence[Sample]], pd.DataFrame]] = {
        SYNC: _sync,
        STEP: _step,
        SCALE: _scale,
        PRESSURE: _pressure,
    }
    return make[samples[0].cell](_measured(samples))


def show(console: Console, samples: Sequence[Sample]) -> None:
    """The tables on the terminal; of the scale its decode steps only."""
    if not console.is_terminal and any(s.cell in CELLS for s in samples):
        console.width = max(console.width, PIPE_WIDTH)  # a file or a pipe has no width of its own
    for cell, title in TITLES.items():
        here = [s for s in samples if s.cell == cell]
        if cell == SCALE:
            here = [s for s in here if s.parameters["step"] == "decode"]
        if here and not any(s.rounds for s in here):
            console.print(f"ranks: {title}: {here[0].note}", markup=False, highlight=False, soft_wrap=True)
        elif here:
            data = table(here)
            columns = [f"ranks: {title}", *map(escape, data.columns[1:])]
            shown = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
            for row in data.to_numpy().tolist():
                shown.add_row(*map(escape, row))
            console.print(shown)


def _measured(samples: Sequence[Sample]) -> list[Sample]:
    """Those of implementations that have a number here; all, if nobody has."""
    names = {s.implementation for s in samples if s.rounds}
    return [s for s in samples if s.implementation in names or not names]


def _several(samples: Sequence[Sample]) -> list[str]:
    """The heading of a column for implementations, where there are several."""
    return ["whose"] if len({s.implementation for s in samples}) > 1 else []


def _what(s: Sample, several: Sequence[str]) -> list[str]:
    """The step in words, and whose."""
    text = f"{s.parameters['step']}, {s.parameters['sequences']:,} seqs"
    return [text, s.implementation] if several else [text]


def _why(s: Sample) -> str:
    """In a word; the caption has the rest."""
    return s.note.partition(":")[0]


def _floor(s: Sample) -> str:
    """How far apart two equal ones were measured."""
    return f" ±{s.floor:.1%}" if s.floor is not None else ""


def _sync(samples: Sequence[Sample]) -> pd.DataFrame:
    several, worlds = _several(samples), sorted({s.parameters["ranks"] for s in samples})
    rows: dict[tuple[str, ...], dict[int, str]] = {}
    for s in samples:
        text = duration(s.median) if s.rounds else _why(s)
        if s.rounds and "alone_ratio" in s.counters:
            ratio = s.counters["alone_ratio"]
            text += f", {ratio:.2g}x" if ratio < 99 else f", {ratio:,.0f}x"
        text += _floor(s)
        rows.setdefault(tuple(_what(s, several)), {})[s.parameters["ranks"]] = text
    data = [[*what, *(row.get(w, "") for w in worlds)] for what, row in rows.items()]
    return pd.DataFrame(data, columns=["a step", *several, *(f"{w} rank{'s' * (w > 1)}" for w in worlds)])


def _step(samples: Sequence[Sample]) -> pd.DataFrame:
    several = _several(samples)
    columns = ["a step", *several, "ranks", "messages", "depth", "bytes", *BYTES[:3], "other"]
    columns += ["changed", "whole tables", "delta/whole", "time"]
    rows = []
    for s in samples:
        head, c = [*_what(s, several), str(s.parameters["ranks"])], s.counters
        if not s.rounds:
            rows.append([*head, _why(s), *[""] * (len(columns) - len(head) - 1)])
            continue
        ratio = f"{c['delta_to_whole'] * 100:.2g}%" if "delta_to_whole" in c else ""
        sizes = [whole(c.get(f"{part}_bytes")) for part in BYTES[:3]]
        other = [c[f"{part}_bytes"] for part in OTHER if f"{part}_bytes" in c]
        sizes.append(whole(sum(other)) if other else "")
        counted = [whole(c.get(name)) for name in ("messages", "depth", "bytes_a_rank")]
        tables = [whole(c["changed_entries"]), whole(c["whole_tables"]), ratio]
        rows.append([*head, *counted, *sizes, *tables, duration(s.median) + _floor(s)])
    return pd.DataFrame(rows, columns=columns)


def _scale(samples: Sequence[Sample]) -> pd.DataFrame:
    several = _several(samples)
    pairs = ("messages", "bytes", "depth")
    columns = ["a step", *several, "ranks", *(f"{name} (paper)" for name in pairs)]
    columns += ["flat: time", "tree: depth", "tree: time"]
    rows = []
    for s in samples:
        head, c = [*_what(s, several), f"{s.parameters['ranks']:,}"], s.counters
        if not s.rounds:
            rows.append([*head, _why(s), *[""] * (len(columns) - len(head) - 1)])
            continue
        counted = [f"{whole(c[name])} ({whole(c[f'paper_{name}'])})" for name in pairs]
        rows.append(
            [*head, *counted, duration(c["paper_us"]), whole(c["tree_depth"]), duration(c["tree_us"])]
        )
    return pd.DataFrame(rows, columns=columns)


def _pressure(samples: Sequence[Sample]) -> pd.DataFrame:
    several, heads = _several(samples), list[str]()
    for s in samples:
        head = f"{s.parameters['where']}, {s.parameters['kill']}"
        heads.append(head + (f", {s.implementation}" if several else ""))
    rows = [[what, *(_figures(s.counters, keys) for s in samples)] for what, keys in FIGURES]
    rows.append(["time of the run", *(duration(s.median * 1e6) if s.rounds else "" for s in samples)])
    if not all(s.rounds for s in samples):
        rows.append(["no figures", *("" if s.rounds else _why(s) for s in samples)])
    return pd.DataFrame(rows, columns=["", *heads])


def caption(samples: Sequence[Sample]) -> str:
    """What to know of the table, in a few sentences."""
    cell, p = samples[0].cell, samples[0].parameters
    notes = dict.fromkeys(f"{s.implementation}: {s.note}" for s in samples if not s.rounds)
    missing = "".join(f"\n\n{note}" for note in notes)
    if cell != PRESSURE:
        return NOTES[cell] + missing
    what = f"{p['trace']}, {p['requests']:,} requests, prompts of at most {p['longest']:,} tokens"
    return f"{what}, {p['ranks']} ranks. {NOTES[cell]}{missing}"


def _figures(counters: Mapping[str, float], keys: Sequence[str]) -> str:
    return ", ".join(whole(counters[k]) for k in keys if k in counters)


def whole(x: Any) -> str:
    """A count; nothing for none."""
    return "" if x is None else f"{x:,.0f}"

"""The model of a decision on paper: messages, bytes, depth and time for any number of ranks.

What it takes for granted, and the formulas, stand in `specs/scenarios/ranks.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.bench.rank_work import PROMPT
from kvproof.bench.subject import blocks_for

ROUNDS = {"decode": 2, "new blocks": 2, "admission": 3}
"""Prepare and commit; before them, for a prompt that may be cached, the hit."""


def levels(ranks: int, fan_out: int) -> int:
    """Levels of a tree below its root in which nobody has more than `fan_out` children."""
    found, reached, width = 0, 0, 1
    while reached < ranks - 1:
        width *= fan_out
        reached += width
        found += 1
    return found


def on_paper(
    paper: Mapping[str, float], ranks: int, sequences: int, kind: str, blocks: int, size: int
) -> dict[str, float]:
    """Counts and microseconds by name: paper_messages, paper_bytes, ..., paper_us, tree_depth, tree_us."""
    rounds, others = ROUNDS[kind], ranks - 1
    hit = min(PROMPT // 2, (blocks - 1) * size) // size if kind == "admission" else 0
    body = paper["head"] + paper["token_bytes"] * sequences
    if kind == "new blocks":
        body += paper["entry_bytes"] * sequences
    if kind == "admission":
        body += paper["token_bytes"] * (PROMPT - hit * size) + paper["row_bytes"] * (sequences + 1)
        body += paper["entry_bytes"] * blocks_for(PROMPT, size) + paper["hit_bytes"] * hit + 4
    each = 2 * rounds * paper["frame"] + body
    hops, deep = 2 * rounds, levels(ranks, int(paper["fan_out"]))
    latency, handling, rate = paper["latency_us"], paper["handling_us"], paper["bandwidth_gb_s"] * 1e3
    flat = hops * latency + hops * others * handling + others * each / rate
    fan = min(paper["fan_out"], others)
    tree = deep * (hops * latency + hops * fan * handling + fan * each / rate)
    return {
        "paper_messages": hops * others,
        "paper_bytes": each * others,
        "paper_depth": hops if others else 0,
        "paper_us": flat if others else 0.0,
        "tree_depth": hops * deep,
        "tree_us": tree,
    }

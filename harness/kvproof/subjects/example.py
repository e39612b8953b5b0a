"""A small history as messages, to type a program against: `kvproof protocol`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvproof.subjects.serve import server

Exchange = tuple[str, str, str]
"""Why it is asked, the request, the answer."""

ASKED: Sequence[tuple[str, dict[str, Any]]] = (
    (
        "A new manager of 8 blocks of 4 tokens; it says what it can do (specs/capabilities.toml)",
        {"op": "open", "proto": 1, "profile": "manager", "num_blocks": 8, "block_size": 4},
    ),
    (
        "Sequence 0 starts with 6 tokens: blocks for all of them. 0 of them are in the prefix cache",
        {"op": "add", "seq": 0, "tokens": [1, 2, 3, 4, 5, 6]},
    ),
    ("Its block table: 2 blocks, the ids are yours to choose", {"op": "table", "seq": 0}),
    (
        "The KV of positions below 6 is written: the full block may be found from now on",
        {"op": "commit", "seq": 0, "computed": 6},
    ),
    (
        "The same first 4 tokens (capability prefix): a hit on that block, so 4 are cached",
        {"op": "add", "seq": 1, "tokens": [1, 2, 3, 4, 9]},
    ),
    ("", {"op": "commit", "seq": 1, "computed": 5}),
    ("Sequence 2 shares all blocks of sequence 0 (capability fork)", {"op": "fork", "seq": 0, "child": 2}),
    (
        "Its half-filled block belongs to both, so it is copied first: the answer is [source, target]",
        {"op": "append", "seq": 2, "tokens": [7]},
    ),
    ("", {"op": "commit", "seq": 2, "computed": 7}),
    (
        "Blocks that a new sequence could take: free, or cached and owned by nobody",
        {"op": "free_blocks"},
    ),
    ("Owners of a block among live sequences (capability refcount)", {"op": "refcount", "block": 1}),
    ("One look at everything; whoever does not know it answers Unsupported", {"op": "state"}),
    (
        "40 tokens fit 8 blocks of 4 never: an error, and nothing has changed",
        {"op": "add", "seq": 3, "tokens": list(range(40))},
    ),
    ("An id that is in use", {"op": "add", "seq": 0, "tokens": [1]}),
    ("An id that nobody has", {"op": "table", "seq": 9}),
    (
        "Several at once, timed inside: parse them all, then start the clock. The benchmark asks this way",
        {
            "op": "run",
            "ops": [
                {"op": "append", "seq": 1, "tokens": [8]},
                {"op": "commit", "seq": 1, "computed": 6},
                {"op": "free", "seq": 1},
            ],
        },
    ),
    ("", {"op": "free", "seq": 0}),
    ("", {"op": "free", "seq": 2}),
    (
        "All blocks can be had again; those in the cache are given up when they are needed",
        {"op": "free_blocks"},
    ),
    ("What you do not know", {"op": "teleport"}),
)


def exchanges(name: str = "plain") -> Iterator[Exchange]:
    """The history with the answers of an implementation in Python.

    Raises:
        SubjectError: there is none of that name.
    """
    peer = server(name)
    for why, message in ASKED:
        request = json.dumps(message)
        yield why, request, peer.answer(request)

"""Seeded random arrivals, aborts and budgets for a scheduler on a tiny pool."""

from __future__ import annotations

import random
from collections.abc import Iterable

from kvproof.histories.directed.scheduling import Load
from kvproof.histories.seeded import POOL
from kvproof.records import Case


def arrivals(
    seed: int,
    capabilities: Iterable[str],
    operations: tuple[int, int] = (4, 14),
    pool: tuple[int, int] = POOL,
) -> Case:
    """The random load of this seed, of so many operations on so many blocks; it ends with a drain."""
    draw, has = random.Random(seed), frozenset(capabilities)
    size = draw.choice((2, 2, 3, 4))
    blocks = draw.randint(*pool)
    seqs, tokens = draw.randint(1, 5), draw.choice((2, 3, 5, 8, 16, 32))
    tokens = tokens if "tight_budget" in has else max(tokens, seqs)
    load, known, rid = Load(), [[1, 2]], 0
    slots = blocks * size
    tokens = tokens if "chunked" in has else max(tokens, slots)
    for _ in range(draw.randint(*operations)):
        roll = draw.random()
        if roll < 0.55 or not rid:
            base = draw.choice(known)
            prompt = base[: draw.randint(1, len(base))] + draw.choices((1, 2), k=draw.randint(0, 2 * size))
            prompt = prompt[: max(1, slots // 2)]
            known.append(prompt)
            most = slots + 2 if draw.random() < 0.1 else max(1, slots - len(prompt))
            extra = {"priority": draw.randint(0, 2)} if "order:priority" in has else {}
            load.submit(rid, prompt, draw.randint(1, max(1, min(most, 3 * size + 4))), **extra)
            rid += 1
        elif roll < 0.9:
            load.steps(draw.randint(1, 4))
        elif roll < 0.95:
            load.abort(draw.randrange(rid), args={"unknown": True})
        else:
            load.steps(1, abort_between=draw.randrange(rid))
    case = load.drain().load(
        f"random/{seed}", (), (blocks, size, seqs, tokens), note="seeded random arrivals"
    )
    return case.model_copy(update={"seed": seed})

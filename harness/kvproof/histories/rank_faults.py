"""Seeded random histories of a group of ranks: steps, and faults among them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from kvproof.histories.directed.ranks import Ranks
from kvproof.records import Case

MESSAGES = ("drop", "repeat", "delay", "behind", "damage")


def rank_faults(seed: int, capabilities: Iterable[str], steps: tuple[int, int] = (4, 14)) -> Case:
    """The history of this seed. After a step with a fault the group is formed again, twice."""
    draw, has = random.Random(seed), frozenset(capabilities)
    world, size = draw.choice((2, 2, 3, 3, 4, 8)), draw.choice((1, 2, 3, 4))
    # Ranks that torchrun has started are so many, and it lets none of them end.
    fixed = next((int(c.partition(":")[2]) for c in has if c.startswith("world:")), 0)
    world = fixed or world
    low = draw.randint(4, 10)
    pools = [low + draw.choice((0, 0, 1, 3)) for _ in range(world)]
    h, known, next_id = Ranks(), [[1, 2, 1]], 0
    live: dict[int, bool] = {}
    ended: set[int] = set()
    stopped: set[int] = set()
    for _ in range(draw.randint(*steps)):
        operations: list[tuple[Any, ...]] = []
        for seq in [s for s in sorted(live) if draw.random() < 0.6]:
            roll = draw.random()
            if roll < 0.12:
                operations.append(("free", seq))
                del live[seq]
            elif roll < 0.25:
                operations.append(("preempt" if live[seq] else "resume", seq))
                live[seq] = not live[seq]
            elif live[seq]:
                operations.append(
                    ("append", seq, draw.choices((1, 2), k=draw.choice((1, 1, 1, 2, size + 1))))
                )
        if not live or draw.random() < 0.35:
            base = draw.choice(known)
            tokens = base[: draw.randint(0, len(base))] + draw.choices((1, 2), k=draw.randint(1, 2 * size))
            known.append(tokens)
            operations.append(("add", next_id, tokens))
            live[next_id], next_id = True, next_id + 1
        faults = _faults(draw, world, ended, stopped, bool(fixed)) if draw.random() < 0.5 else []
        h.step(*operations, faults=faults)
        if faults:
            h.form().form()
        if stopped and draw.random() < 0.5:
            rank = stopped.pop()
            h.on("resume_rank", rank)
            if draw.random() < 0.5:
                h.form().form()
        if "local_evict" in has and draw.random() < 0.15:
            h.on(
                "evict",
                draw.choice([r for r in range(world) if r not in ended | stopped]),
                count=draw.randint(1, 3),
            )
        if "refusing" in has and draw.random() < 0.08 and world - len(ended | stopped) > 2:
            h.on("refuse", max(r for r in range(world) if r not in ended | stopped))
    return h.ranks(f"random/{seed}", (), pools, size, note="seeded random steps and faults", seed=seed)


def _faults(
    draw: random.Random, world: int, ended: set[int], stopped: set[int], messages_only: bool
) -> list[dict[str, Any]]:
    """One rank that ends or stops, or up to three messages."""
    running = [r for r in range(world) if r not in ended | stopped]
    roll = draw.random()
    if roll < 0.3 and len(running) > 1 and not messages_only:
        kill = roll < 0.2
        rank = draw.choice(running if kill else running[1:])
        (ended if kill else stopped).add(rank)
        return [{"rank": rank, "kind": "kill" if kill else "stop", "events": draw.randint(0, 2 * world)}]
    found = []
    for number in draw.sample(range(4 * world), draw.randint(1, 3)):
        kind = draw.choice(MESSAGES)
        extra = {"ticks": draw.randint(1, 4)} if kind == "delay" else {}
        extra |= {"at": draw.randint(0, 60), "bit": draw.randint(0, 7)} if kind == "damage" else {}
        found.append({"message": number, "kind": kind, **extra})
    return found

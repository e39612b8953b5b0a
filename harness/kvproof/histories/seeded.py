"""Seeded random histories on tiny pools: equal blocks after different prefixes come up by themselves."""

from __future__ import annotations

import random
from collections.abc import Iterable

from kvproof.histories.build import History
from kvproof.records import Case

OPERATIONS = 40
POOL = (5, 10)
LARGE = 0.05
"""Share of the seeds that get a larger pool, larger blocks and many sequences at once."""
LARGE_POOL = (40, 80)
MOST_ALIVE = 60
TOKENS = (1, 2)
"""Two values: short prompts are often equal, or equal in some block."""


class _Writer:
    """Keeps just enough state to write histories that mean something."""

    def __init__(self, seed: int, capabilities: frozenset[str], pool: tuple[int, int]) -> None:
        self.draw = random.Random(seed)
        self.has = capabilities.__contains__
        aside = random.Random(f"shape of {seed}")
        self.large = pool == POOL and aside.random() < LARGE
        self.again = self.large or aside.random() < 0.2
        """Ids of freed sequences are used again."""
        self.block_size = self.draw.choice((8, 16) if self.large else (2, 2, 3, 4))
        self.num_blocks = self.draw.randint(*(LARGE_POOL if self.large else pool))
        self.history = History()
        self.lengths: dict[int, int] = {}
        self.uncommitted: set[int] = set()
        self.swapped: set[int] = set()
        self.next_id = 0
        self.freed: list[int] = []
        self.prompts: list[list[int]] = []
        self.keyed = self.has("keys") and self.draw.random() < 0.3

    def prompt(self) -> list[int]:
        """An earlier prompt, whole, cut or continued, or a new one."""
        most = self.block_size * (3 if self.large else max(2, self.num_blocks // 2))
        if self.prompts and self.draw.random() < 0.6:
            base = self.draw.choice(self.prompts)
            tokens = base[: self.draw.randint(1, len(base))]
            tokens = tokens + self.draw.choices(TOKENS, k=self.draw.randint(0, self.block_size + 1))
        else:
            tokens = self.draw.choices(TOKENS, k=self.draw.randint(1, most))
        if self.draw.random() < 0.3:  # whole blocks: the edge where most faults are
            whole = len(tokens) // self.block_size * self.block_size
            tokens = tokens[: max(whole, 1)]
        return tokens[:most]

    def pick(self) -> int:
        return self.draw.choice(sorted(self.lengths))

    def ready(self, seq: int) -> bool:
        return seq not in self.swapped and seq not in self.uncommitted

    def later(self) -> bool:
        return self.has("defer") and self.draw.random() < 0.25

    def new_id(self) -> int:
        if self.again and self.freed:
            return self.freed.pop()
        self.next_id += 1
        return self.next_id - 1

    def start(self) -> None:
        tokens, seq = self.prompt(), self.new_id()
        keys = None
        if self.keyed:
            keys = self.draw.choice(({}, {"salt": "a"}, {"salt": "b"}, {"adapter": "a"}))
        wait = self.later()
        self.history.add(seq, tokens, commit=not wait, **({"keys": keys} if keys else {}))
        self.lengths[seq] = len(tokens)
        self.prompts.append(tokens)
        if wait:
            self.uncommitted.add(seq)

    def grow(self, seq: int) -> None:
        count = (
            self.draw.randint(2, 2 * self.block_size) if self.has("multi") and self.draw.random() < 0.2 else 1
        )
        wait = self.later()
        self.history.append(seq, *self.draw.choices(TOKENS, k=count), commit=not wait)
        self.lengths[seq] += count
        if wait:
            self.uncommitted.add(seq)
        elif seq in self.uncommitted:
            self.uncommitted.discard(seq)

    def end(self, seq: int) -> None:
        self.history.free(seq)
        del self.lengths[seq]
        self.freed.append(seq)
        self.uncommitted.discard(seq)
        self.swapped.discard(seq)

    def fork(self, seq: int) -> None:
        if seq in self.uncommitted:
            self.history.commit(seq)
            self.uncommitted.discard(seq)
        child = self.new_id()
        self.history.fork(seq, child)
        self.lengths[child] = self.lengths[seq]

    def cut(self, seq: int) -> None:
        length = self.draw.randint(1, self.lengths[seq])
        self.history.truncate(seq, length)
        self.lengths[seq] = length

    def step(self) -> None:
        seqs = [s for s in sorted(self.lengths) if s not in self.swapped and s not in self.uncommitted]
        self.draw.shuffle(seqs)
        if seqs:
            seqs = seqs[: self.draw.randint(1, len(seqs))]
            self.history.step(seqs, self.draw.choices(TOKENS, k=len(seqs)))
            for seq in seqs:
                self.lengths[seq] += 1

    def look(self) -> None:
        seqs = [s for s in sorted(self.lengths) if s not in self.swapped]
        self.draw.shuffle(seqs)
        self.history.op(self.draw.choice([o for o in ("batch", "csr") if self.has(o)]), seqs=seqs)

    def one(self) -> None:
        """One more operation."""
        roll = self.draw.random()
        crowd = self.large and len(self.lengths) < MOST_ALIVE and self.draw.random() < 0.4
        if not self.lengths or roll < 0.25 or crowd:
            self.start()
            return
        seq = self.pick()
        if seq in self.swapped:
            if roll < 0.8:
                self.history.op("swap_in", seq=seq)
                self.swapped.discard(seq)
            else:
                self.end(seq)
        elif seq in self.uncommitted and roll < 0.6:
            self.history.commit(seq)
            self.uncommitted.discard(seq)
        elif roll < 0.55:
            self.grow(seq)
        elif roll < 0.72:
            self.end(seq)
        elif roll < 0.79 and self.has("fork"):
            self.fork(seq)
        elif roll < 0.84 and self.has("truncate"):
            self.cut(seq)
        elif roll < 0.88 and self.has("swap") and self.has("copies"):
            self.history.op("swap_out", seq=seq)
            self.swapped.add(seq)
        elif roll < 0.94 and self.has("steps"):
            self.step()
        elif roll < 0.97 and (self.has("batch") or self.has("csr")):
            self.look()
        elif roll < 0.98 and self.has("reset"):
            self.history.op("reset")
        else:
            self.grow(seq)


def seeded(
    seed: int, capabilities: Iterable[str], operations: int = OPERATIONS, pool: tuple[int, int] = POOL
) -> Case:
    """The random history of this seed for a subject with these capabilities; `pool`: least and most blocks.

    It ends with every sequence freed and a reclaim probe.
    """
    writer = _Writer(seed, frozenset(capabilities), pool)
    for _ in range(2 * operations if writer.large else operations):
        writer.one()
    ids = sorted(writer.lengths)
    writer.draw.shuffle(ids)
    writer.history.free(*ids).reclaim()
    return writer.history.case(
        f"random/{seed}",
        (),
        writer.num_blocks,
        writer.block_size,
        seed=seed,
        stands_for=(),
        note="seeded random history",
    )

"""Turns intents into a legal history: `append to the a-th live sequence` becomes an operation, or nothing.

It keeps what a caller of the manager knows: which sequences it has started, their lengths, what it has
not committed yet and what is swapped out. Whether a call fits the pool is the manager's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvproof.histories.build import History

KEYS: tuple[dict[str, str], ...] = ({}, {"salt": "a"}, {"salt": "b"}, {"adapter": "a"})
Tokens = tuple[int, ...]


class Scribe:
    """Writes one history."""

    def __init__(self, num_blocks: int, block_size: int, capabilities: frozenset[str]) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.has = capabilities.__contains__
        self.history = History()
        self.lengths: dict[int, int] = {}
        self.uncommitted: set[int] = set()
        self.swapped: set[int] = set()
        self.prompts: list[Tokens] = []
        self.references: list[int] = []
        """Of each raw block, in order of allocation."""
        self.next_id = 0

    def close(self) -> History:
        """Free everything and ask for what should be free."""
        for index, count in enumerate(self.references):
            for _ in range(count):
                self.history.op("release", blocks=(index,))
        return self.history.free(*sorted(self.lengths)).reclaim()

    def pick(self, a: int, *, out: bool = False) -> int | None:
        """The a-th live sequence that is swapped in, or out; None if there is none."""
        seqs = [s for s in sorted(self.lengths) if (s in self.swapped) == out]
        return seqs[a % len(seqs)] if seqs else None

    def ready(self) -> list[int]:
        """Sequences that may take part in a decode step."""
        return [s for s in sorted(self.lengths) if s not in self.swapped and s not in self.uncommitted]

    def start(self, length: int) -> int:
        seq, self.next_id = self.next_id, self.next_id + 1
        self.lengths[seq] = length
        return seq

    def prompt(self, a: int, b: int, tokens: Tokens) -> Tokens:
        """An earlier prompt cut at a block edge (b < 4) or near its end, and these tokens behind it."""
        base = self.prompts[a % len(self.prompts)] if self.prompts and a else ()
        kept = base[: b * self.block_size] if b < 4 else base[: max(len(base) - (b - 4), 0)]
        return (kept + tokens or (1,))[: self.block_size * (self.num_blocks + 1)]


def add(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    prompt, wait = s.prompt(a, b, tokens), late and s.has("defer")
    seq = s.start(len(prompt))
    s.prompts.append(prompt)
    s.history.add(seq, prompt, commit=not wait)
    if wait:
        s.uncommitted.add(seq)


def add_keyed(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    prompt = s.prompt(a, b, tokens)
    s.prompts.append(prompt)
    s.history.add(s.start(len(prompt)), prompt, keys=KEYS[b % len(KEYS)])


def append(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    seq, wait = s.pick(a), late and s.has("defer")
    if seq is None:
        return
    new = (tokens or (1,)) if s.has("multi") and b == 7 else (1 + b % 2,)
    s.lengths[seq] += len(new)
    s.history.append(seq, *new, commit=not wait)
    s.uncommitted.add(seq) if wait else s.uncommitted.discard(seq)


def commit(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    """Of everything, or of all but the last b tokens."""
    if not s.uncommitted:
        return
    seq = sorted(s.uncommitted)[a % len(s.uncommitted)]
    if late and 0 < b < s.lengths[seq] and seq not in s.swapped:
        s.history.commit(seq, s.lengths[seq] - b)
    elif seq not in s.swapped:
        s.history.commit(seq)
        s.uncommitted.discard(seq)


def free(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    if not s.lengths:
        return
    seq = sorted(s.lengths)[a % len(s.lengths)]
    s.history.free(seq)
    del s.lengths[seq]
    s.uncommitted.discard(seq)
    s.swapped.discard(seq)


def fork(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    seq = s.pick(a)
    if seq is None:
        return
    if seq in s.uncommitted:
        s.history.commit(seq)
        s.uncommitted.discard(seq)
    s.history.fork(seq, s.start(s.lengths[seq]))


def truncate(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    """At a block edge, or near the end."""
    seq = s.pick(a)
    if seq is not None:
        length = s.lengths[seq]
        length = max(1, min(length, b * s.block_size if late else length - b))
        s.history.truncate(seq, length)
        s.lengths[seq] = length


def swap_out(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    seq = s.pick(a)
    if seq is not None:
        s.history.op("swap_out", seq=seq)
        s.swapped.add(seq)


def swap_in(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    seq = s.pick(a, out=True)
    if seq is not None:
        s.history.op("swap_in", seq=seq)
        s.swapped.discard(seq)


def step(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    seqs = s.ready()
    seqs = (seqs[a % len(seqs) :] + seqs[: a % len(seqs)])[: 1 + b] if seqs else []
    if seqs:
        s.history.step(seqs, [1 + (a + i) % 2 for i in range(len(seqs))])
        for seq in seqs:
            s.lengths[seq] += 1


def look(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    """A question that changes nothing."""
    seqs = [x for x in sorted(s.lengths) if x not in s.swapped]
    if late:
        seqs.reverse()
    seq = s.pick(a)
    asked = [o for o in ("batch", "csr", "codec", "wire", "slots") if s.has(o)]
    kind = asked[b % len(asked)] if asked else ""
    if kind in ("batch", "csr", "codec"):
        s.history.op(kind, seqs=seqs)
    elif kind == "wire" and seq is not None:
        s.history.op(kind, seq=seq)
    elif kind == "slots" and seq is not None:
        s.history.op(kind, seq=seq, lo=0, hi=s.lengths[seq])


def match(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    s.history.op("match", tokens=s.prompt(a, b, tokens))


def reset(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    s.history.op("reset")


def reclaim(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    s.history.reclaim()


def alloc(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    """Only with ample room: later operations name the block by its place among those allocated."""
    taken = sum(-(-length // s.block_size) + 1 for length in s.lengths.values()) + len(s.references)
    if taken + 2 < s.num_blocks:
        s.references.append(1)
        s.history.op("alloc")


def retain(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    held = [i for i, count in enumerate(s.references) if count]
    if held:
        s.references[held[a % len(held)]] += 1
        s.history.op("retain", blocks=(held[a % len(held)],))


def release(s: Scribe, a: int, b: int, tokens: Tokens, late: bool) -> None:
    held = [i for i, count in enumerate(s.references) if count]
    if held:
        s.references[held[a % len(held)]] -= 1
        s.history.op("release_many" if late else "release", blocks=(held[a % len(held)],))


Write = Callable[[Scribe, int, int, Tokens, bool], None]


@dataclass(frozen=True)
class Kind:
    """One kind of intent."""

    write: Write
    needs: frozenset[str] = frozenset()
    staple: int = 0
    """How often it stands in every drawn mix; 0: only where the mix has it."""


KINDS: dict[str, Kind] = {
    "add": Kind(add, staple=2),
    "append": Kind(append, staple=3),
    "free": Kind(free, staple=2),
    "add_keyed": Kind(add_keyed, frozenset({"keys"})),
    "commit": Kind(commit, frozenset({"defer"})),
    "fork": Kind(fork, frozenset({"fork"})),
    "truncate": Kind(truncate, frozenset({"truncate"})),
    "swap_out": Kind(swap_out, frozenset({"swap", "copies"})),
    "swap_in": Kind(swap_in, frozenset({"swap", "copies"})),
    "step": Kind(step, frozenset({"steps"})),
    "look": Kind(look),
    "match": Kind(match, frozenset({"prefix", "match"})),
    "reset": Kind(reset, frozenset({"reset"})),
    "reclaim": Kind(reclaim),
    "alloc": Kind(alloc, frozenset({"blocks"})),
    "retain": Kind(retain, frozenset({"blocks"})),
    "release": Kind(release, frozenset({"blocks"})),
}

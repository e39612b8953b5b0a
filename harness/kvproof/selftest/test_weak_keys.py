"""The prompts that are made to collide do so, and a finding says in which token they differ."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from kvproof.histories.directed import cases, weak_keys
from kvproof.histories.shrink import shrink
from kvproof.records import Case, Finding
from kvproof.selftest.inprocess import InProcess
from kvproof.selftest.kill_matrix import session_of


def test_prompts_collide_as_they_are_said_to() -> None:
    starts: tuple[Sequence[int], ...] = ((), (0,), (-1,))
    for start, (one, other) in zip(starts, weak_keys.HASH_OF_TUPLES, strict=True):
        assert one != other
        assert hash((*start, *one, 3)) == hash((*start, *other, 3))
    for width, (one, other) in zip((4, 8), weak_keys.CRC_32, strict=True):
        packed = [b"".join(t.to_bytes(width, "little") for t in tokens) for tokens in (one, other)]
        assert packed[0] != packed[1]
        assert zlib.crc32(packed[0], 77) == zlib.crc32(packed[1], 77)


def test_a_wrong_hit_is_shown_in_three_operations_with_the_bit_that_was_ignored() -> None:
    session = session_of(InProcess("faulty:high_bits_ignored"))
    case = next(c for c in cases() if c.id == "prefix/colliding/one-bit-of-small-token-0")

    def found(candidate: Case) -> Finding | None:
        return next((f for f in session.run(candidate)[1] if f.requirement == "KVP-PREFIX-016"), None)

    small = shrink(case, lambda c: found(c) is not None)
    assert len(small.history) <= 4
    finding = found(case)
    assert finding is not None
    assert "the first at 0: 5, not 131077 (bit 17)" in finding.got


def test_a_guard_that_is_not_declared_is_not_judged() -> None:
    session = session_of(InProcess("faulty:high_bits_ignored"))
    session.description = {**session.description, "guard": None}
    case = next(c for c in cases() if c.id == "prefix/colliding/one-bit-of-small-token-0")
    case = case.model_copy(update={"aim": ("KVP-PREFIX-001",)})
    named = {f.requirement for f in session.run(case)[1]}
    assert "KVP-PREFIX-001" in named
    assert "KVP-PREFIX-016" not in named

"""The oracle: fingerprints stand for whole histories, the model knows what may and must be matched."""

from __future__ import annotations

from kvproof.checks import judge
from kvproof.histories.build import History
from kvproof.oracle.fingerprints import Fingerprints
from kvproof.oracle.model import Facts
from kvproof.records import Observation
from kvproof.selftest.rogues import Bare
from kvproof.subjects.calls import drive


def test_fingerprints_are_equal_exactly_for_equal_histories() -> None:
    prints = Fingerprints()
    one = prints.extend([], [1, 2, 3], None)
    assert prints.extend([], [1, 2, 3], {}) == one
    assert prints.extend(one[:2], [3], None) == one[2:]
    other = prints.extend([], [9, 2, 3], None)
    assert not set(one) & set(other), "the KV of a token depends on every token before it"
    assert [token for token, _ in prints.back(one[2])][1:] == [1, 2, 3]


def test_keys_are_part_of_the_history() -> None:
    prints = Fingerprints()
    plain = prints.extend([], [1, 2], None)
    keyed = [
        {"salt": ""},
        {"salt": "x"},
        {"adapter": "x"},
        {"salt": "a", "adapter": "b"},
        {"salt": "b", "adapter": "a"},
    ]
    seen = [prints.extend([], [1, 2], k)[0] for k in keyed]
    assert len({plain[0], *seen}) == 6
    media = prints.extend([], [1, 2], {"media": [(1, 1, "cat")]})
    assert media[0] == plain[0], "positions before the item do not depend on it"
    assert media[1] != plain[1]


def observed(history: History) -> tuple[list[Observation], list[str]]:
    """Drive a sound manager of three blocks of two tokens, and judge what was seen."""
    case = history.case("x", "POOL-001", 3, 2)
    seen = list(drive(Bare(3, 2), case))
    return seen, [f.requirement for f in judge(case, Facts(3, 2), seen)]


def test_a_sound_subject_has_no_finding() -> None:
    seen, findings = observed(History().add(0, [1, 2, 3]).append(0, 4).free(0).reclaim())
    assert [s.outcome for s in seen] == ["ok"] * 6
    assert findings == []


def test_checks_see_what_was_tampered_with() -> None:
    """Each change of an observation is one fault; the checks name it without looking into the subject."""
    case = History().add(0, [1, 2, 3]).add(1, [7]).append(0, 4).free(0).case("x", "POOL-001", 3, 2)
    seen = list(drive(Bare(3, 2), case))
    assert judge(case, Facts(3, 2), seen) == []

    def findings(step: int, **changes: object) -> set[str]:
        told = [*seen[:step], seen[step].model_copy(update=changes), *seen[step + 1 :]]
        return {f.requirement for f in judge(case, Facts(3, 2), told) if f.step == step}

    tables = seen[3].tables
    assert "KVP-POOL-001" in findings(3, free=2)
    assert "KVP-TABLE-001" in findings(3, tables={**tables, 0: tables[0][:1]})
    assert "KVP-TABLE-002" in findings(3, tables={**tables, 0: (tables[0][0], tables[0][0])})
    assert "KVP-POOL-002" in findings(3, tables={**tables, 1: (tables[0][1],)})
    assert "KVP-TABLE-003" in findings(3, tables={**tables, 0: tables[0][::-1]})
    assert "KVP-TABLE-005" in findings(3, stale=(0,))
    wrong = (seen[3].reads[1][0], *seen[3].reads[0][1:])  # position 0 reads what the other sequence wrote
    assert findings(3, reads={**seen[3].reads, 0: wrong})

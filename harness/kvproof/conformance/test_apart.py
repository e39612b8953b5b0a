"""What no single history can show: other processes, the factory, the declared guard."""

from __future__ import annotations

from typing import Any

from kvproof.conformance.citing import requirement
from kvproof.conformance.plugin import require
from kvproof.conformance.session import Session
from kvproof.histories.build import History
from kvproof.records import Verdict
from kvproof.subjects import SubjectError
from kvproof.subjects.host import Worker

KEYS: tuple[dict[str, Any], ...] = (
    {},
    {"salt": "a"},
    {"adapter": "b"},
    {"salt": "a", "adapter": "b"},
    {"media": [[1, 3, "cat"]]},
)


def _keys_in_new_process(session: Session, hash_seed: str) -> object:
    h = History()
    keyed = KEYS if "keys" in session.gates else ({},)
    for keys in keyed:
        h.op("block_keys", tokens=range(9), keys=keys)
    case = h.case("prefix/keys-in-another-process", "PREFIX-009", 8, 4)
    with Worker(
        session.worker.implementation, session.worker.call_limit, {"PYTHONHASHSEED": hash_seed}
    ) as worker:
        return [seen.value for seen in worker.run(case).observations]


@requirement("KVP-PREFIX-009")
def test_keys_in_every_process(session: Session) -> None:
    case = "prefix/keys-in-another-process"
    if "stable_keys" not in session.gates:
        require([session.record(case, "KVP-PREFIX-009", Verdict.UNSUPPORTED, reason="needs stable_keys")])
        return
    first, second = (_keys_in_new_process(session, seed) for seed in ("1", "2"))
    verdict = Verdict.PASS if first == second and first else Verdict.FAIL
    require(
        [
            session.record(
                case,
                "KVP-PREFIX-009",
                verdict,
                expected=f"keys {first} in another process too",
                got=str(second),
            )
        ]
    )


@requirement("KVP-PREFIX-016")
def test_declared_guard(session: Session) -> None:
    """A hit must be sure of its tokens: compared, or at least 128 bits of hash."""
    case, guard = "prefix/declared-guard", session.description["guard"]
    if lacking := sorted({"prefix", "guard"} - session.gates):
        reason = "needs " + ", ".join(lacking)
        require([session.record(case, "KVP-PREFIX-016", Verdict.UNSUPPORTED, reason=reason)])
        return
    strong = guard == "tokens" or (isinstance(guard, int) and guard >= 128)
    require(
        [
            session.record(
                case,
                "KVP-PREFIX-016",
                Verdict.PASS if strong else Verdict.FAIL,
                expected='guard "tokens" or at least 128 bits',
                got=f"guard {guard!r}",
            )
        ]
    )


@requirement("KVP-ERR-001")
def test_factory_refuses_nonsense(session: Session) -> None:
    for num_blocks, block_size in ((8, 0), (8, -1)):
        case = f"err/make-{num_blocks}-{block_size}"
        try:
            session.worker.describe(num_blocks, block_size)
        except SubjectError as error:
            require([session.record(case, "KVP-ERR-001", Verdict.PASS, reason=str(error))])
            continue
        require(
            [
                session.record(
                    case,
                    "KVP-ERR-001",
                    Verdict.FAIL,
                    expected=f"make({num_blocks}, {block_size}) is an error",
                    got="it made a manager",
                )
            ]
        )

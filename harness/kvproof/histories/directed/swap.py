"""SWAP: to the host tier and back."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.histories.build import History
from kvproof.histories.directed.pool import tokens
from kvproof.records import Case


def cases() -> Iterator[Case]:
    yield (
        History().add(0, tokens(9)).add(1, tokens(3, 50)).op("swap_out", seq=0)
        .op("append", seq=0, tokens=(5,), expect={"outcome": "Refused"}).add(2, tokens(8, 70)).free(2)
        .op("swap_in", seq=0).append(0, 8).append(1, 9).free(0, 1).reclaim()
        .case("swap/out-and-in", "SWAP-001", 9, 2,
            note="contents and order are the same; append is refused meanwhile")
    )
    yield (
        History().add(0, tokens(7)).add(1, tokens(5, 50)).op("swap_out", seq=0).op("swap_out", seq=1)
        .op("swap_in", seq=1).op("swap_in", seq=0).append(0, 8).append(1, 9).op("swap_out", seq=0)
        .op("swap_in", seq=0).free(1, 0).reclaim()
        .case("swap/two-crossing", "SWAP-001", 9, 2, note="pairs in reverse, or of the other sequence")
    )
    yield (
        History().add(0, tokens(6)).fork(0, 1).op("swap_out", seq=0).append(1, 9).add(2, tokens(4, 50))
        .op("swap_in", seq=0).append(0, 8).free(0, 1, 2).reclaim()
        .case("swap/shared-blocks", "SWAP-001", 10, 4,
            note="blocks that the other sequence still reads")
    )
    yield (
        History().add(0, tokens(9)).free(0).add(1, tokens(9)).op("swap_out", seq=1).add(2, tokens(9))
        .op("swap_in", seq=1).append(1, 8).append(2, 9).free(1, 2).reclaim()
        .case("swap/cached-blocks", "SWAP-001", 12, 4, needs=("prefix",))
    )
    yield (
        History().add(0, tokens(7)).op("swap_out", seq=0).add(1, tokens(5, 50))
        .op("swap_in", seq=0, expect={"outcome": ["OutOfBlocks", "Refused"]}).free(1)
        .op("swap_in", seq=0).append(0, 8).free(0).reclaim()
        .case("swap/no-room-to-come-back", "SWAP-002", 4, 2,
            stands_for=("SWAP-001", "POOL-001", "POOL-004"),
            note="a failed swap-in drops the sequence or keeps the part it got")
    )
    yield (
        History().add(0, tokens(9)).op("swap_out", seq=0, expect={"outcome": "ok"}).free(0)
        .add(1, tokens(3, 30)).op("swap_out", seq=1).add(2, tokens(9, 50))
        .op("swap_out", seq=2, expect={"outcome": ["ok", "OutOfBlocks", "Refused"]}).free(1, 2)
        .add(3, tokens(9, 70)).op("swap_out", seq=3, expect={"outcome": "ok"}).free(3).reclaim()
        .case("swap/host-keeps-nothing", "SWAP-002", 6, 2,
            stands_for=("SWAP-001", "POOL-001", "POOL-004"),
            note="what a full host tier refused takes no room there: what fitted once fits again")
    )
    h = History()
    for seq in range(3):
        (
            h.add(seq, tokens(7, 20 * seq + 1))
            .op("swap_out", seq=seq, expect={"outcome": ["ok", "OutOfBlocks", "Refused"]})
        )
        h.free(seq) if seq == 0 else None
    yield (
        h.append(2, 9, expect={"outcome": ["ok", "Refused", "OutOfBlocks"]}).free(1, 2).reclaim()
        .case("swap/host-full", "SWAP-002", 4, 2, stands_for=("SWAP-001", "POOL-001", "POOL-004"),
            note="a full host tier refuses the whole sequence")
    )

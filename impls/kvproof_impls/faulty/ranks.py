"""Planted faults of tensor-parallel ranks: capacity, agreement, messages, the dead, hits, bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import shake_128
from typing import Any

from kvproof.contract import Network, RankLost, Refused
from kvproof_impls.reference.decision import Change
from kvproof_impls.reference.driver import Driver
from kvproof_impls.reference.rank import Kind, Rank, pack, pack_size, unpack
from kvproof_impls.reference.ranks import Group
from kvproof_impls.reference.replica import Hit, Plan, Prepared, Replica

from .registry import fault

WRONG = 1
"""The rank that is wrong where one is."""

# ------------------------------------------------------------ TP-001


@fault("KVP-TP-001", "the capacity is that of rank 0", model="GeeeekExplorer/nano-vllm#187")
class CapacityOfTheFirst(Group):
    class rank_type(Rank):  # noqa: N801
        def _start(self, capacity: int) -> bytes:
            self.replica = Replica(capacity, self.block_size)
            return b""

    class driver_type(Driver):  # noqa: N801
        def start(self) -> None:
            self._ask(Kind.SIZE)
            self._ask(Kind.START, pack_size(self.rank.num_blocks))
            self.rank.replica = Replica(self.rank.num_blocks, self.rank.block_size)


@fault("KVP-TP-001", "every rank counts the blocks of its own pool", model="GeeeekExplorer/nano-vllm#215")
class CapacityOfEach(Group):
    class rank_type(Rank):  # noqa: N801
        def _do(self, kind: int, body: bytes) -> bytes:
            return super()._do(kind, pack_size(self.num_blocks) if kind == Kind.START else body)


# ------------------------------------------------------------ TP-002


@fault("KVP-TP-002", "rank 1 skips one step, and counts it", model="mstar-project/mstar#281")
class OneStepSkipped(Group):
    class rank_type(Rank):  # noqa: N801
        def apply(self, prepared: Prepared) -> None:
            if self.number == WRONG and self.replica.epoch == 2:
                self.replica.epoch, self.prepared = 3, None
            else:
                super().apply(prepared)


@fault(
    "KVP-TP-002",
    "rank 1 gives a block that is shared a number for each sequence",
    model="LMCache/LMCache#1467",
)
class SharedOnSomeRanks(Group):
    class rank_type(Rank):  # noqa: N801
        def table(self, seq: int) -> list[int]:
            table = super().table(seq)
            if self.number == WRONG:
                spare = (b for b in range(self.num_blocks) if b not in self.replica.owners)
                table = [next(spare, b) if self.replica.owners[b] > 1 else b for b in table]
            return table


@fault("KVP-TP-002", "the digest is one of ids only", model="none known")
class DigestOfIds(Group):
    def digest(self, rank: int) -> bytes:
        return repr(sorted(self.ranks[rank].replica.rows)).encode()


# ------------------------------------------------------------ TP-003


@fault(
    "KVP-TP-003", "a rank applies the step when it is asked whether it can", model="mstar-project/mstar#281"
)
class AppliedWhenAsked(Group):
    class rank_type(Rank):  # noqa: N801
        def _prepare(self, body: bytes) -> bytes:
            digest = super()._prepare(body)
            if self.prepared:
                self.apply(self.prepared)
            return digest

        def _commit(self) -> bytes:
            return self.replica.digest()


@fault("KVP-TP-003", "the driver goes on though a rank refuses", model="mstar-project/mstar#308")
class RefusalIgnored(Group):
    class driver_type(Driver):  # noqa: N801
        def _ask(self, kind: Kind, body: bytes = b"", *, refusable: bool = False) -> Any:
            answers = super()._ask(kind, body, refusable=True)
            agreed = body[8:16] if kind == Kind.PREPARE else self.rank.replica.digest()
            return {r: agreed if isinstance(a, Refused) else a for r, a in answers.items()}


@fault("KVP-TP-003", "survivors keep the epoch that each is at", model="none known")
class EpochsNotSettled(Group):
    class rank_type(Rank):  # noqa: N801
        def _settle(self, epoch: int, digest: bytes) -> bytes:
            self.prepared = None
            return b"\1"


# ------------------------------------------------------------ TP-004


@fault("KVP-TP-004", "a commit that comes twice is applied twice", model="vllm-project/vllm#46595")
class RepeatedCommitApplied(Group):
    class rank_type(Rank):  # noqa: N801
        def handle(self, data: bytes) -> bytes | None:
            message = unpack(data)
            if message and message[0] == Kind.COMMIT and message[2] == self.serial:
                for seq in self.replica.batch:
                    row = self.replica.rows[seq]
                    self.replica.rows[seq] = row._replace(length=row.length + 1)
            return super().handle(data)


@fault("KVP-TP-004", "what comes late is handled like what comes in time", model="RBLN-SW/vllm-rbln#662")
class LateIsHandled(Group):
    class rank_type(Rank):  # noqa: N801
        def handle(self, data: bytes) -> bytes | None:
            message = unpack(data)
            if message and message[2] <= self.serial and message[0] in (Kind.PREPARE, Kind.COMMIT):
                self.serial = message[2] - 1
            return super().handle(data)


@fault("KVP-TP-004", "no checksum: damaged messages are taken as they are", model="none known")
class DamageTaken(Group):
    class rank_type(Rank):  # noqa: N801
        def handle(self, data: bytes) -> bytes | None:
            return super().handle(repaired(data))


def repaired(data: bytes) -> bytes:
    """The message with the checksum of what it says."""
    return pack(
        data[2], int.from_bytes(data[4:8], "little"), int.from_bytes(data[8:16], "little"), data[16:-4]
    )


# ------------------------------------------------------------ TP-005


@fault("KVP-TP-005", "the driver waits for a dead rank for ever", model="NVIDIA/TensorRT-LLM#14020")
class WaitsForTheDead(Group):
    class driver_type(Driver):  # noqa: N801
        tries = 2**40


@fault("KVP-TP-005", "the error names nobody", model="sgl-project/sglang#26923")
class NobodyNamed(Group):
    class driver_type(Driver):  # noqa: N801
        def _lose(self, ranks: Iterable[int], why: str) -> None:
            try:
                super()._lose(ranks, why)
            except RankLost:
                raise RankLost((), "timeout") from None


@fault("KVP-TP-005", "only the driver knows who is dead", model="sgl-project/sglang#26923")
class SurvivorsNotTold(Group):
    class driver_type(Driver):  # noqa: N801
        def _lose(self, ranks: Iterable[int], why: str) -> None:
            self.rank.lost |= set(ranks)
            raise RankLost(sorted(self.rank.lost), why)


@fault("KVP-TP-005", "the driver goes on without the dead, and says nothing", model="none known")
class GoesOnWithoutTheDead(Group):
    class driver_type(Driver):  # noqa: N801
        def _lose(self, ranks: Iterable[int], why: str) -> None:
            self.others = [r for r in self.others if r not in set(ranks)]


# ------------------------------------------------------------ TP-006


class _Careless(Replica):
    """Remembers the tokens of a block whose KV is gone."""

    def forget(self, block: int) -> None:
        kept = self.content.get(block)
        super().forget(block)
        if kept is not None:
            self.content[block] = kept


class _OwnHit(Driver):
    def agreed(self, hit: Hit) -> int:
        return len(hit)


class _CarelessRank(Rank):
    replica_type = _Careless


@fault("KVP-TP-006", "the hit is that of the driver", model="LMCache/LMCache#1467")
class HitOfTheDriver(Group):
    rank_type = _CarelessRank
    driver_type = _OwnHit


@fault("KVP-TP-006", "each rank computes from its own hit on", model="LMCache/LMCache#1379")
class HitOfEach(Group):
    driver_type = _OwnHit

    class rank_type(_CarelessRank):  # noqa: N801
        def apply(self, prepared: Prepared) -> None:
            replica, size = self.replica, self.block_size
            lacking = {
                c.seq: next((i for i, b in enumerate(c.blocks) if b not in replica.key_of), 0) * size
                for c in prepared.decision.changes
                if c.start and not c.kept
            }
            super().apply(prepared)
            for seq, start in lacking.items():
                if start < self.received[seq][0]:
                    self.received[seq] = start, replica.tokens[seq][start:]


# ------------------------------------------------------------ TP-007


@fault(
    "KVP-TP-007",
    "a resumed sequence reaches the workers with its last token only",
    model="KKKZOZ/nano-vllm: a resumed sequence reaches the workers with its last token only",
)
class LastTokenOnly(Group):
    class rank_type(Rank):  # noqa: N801
        def apply(self, prepared: Prepared) -> None:
            resumed = [c.seq for c in prepared.decision.changes if c.seq in self.replica.rows and not c.kept]
            super().apply(prepared)
            for seq in resumed:
                if self.replica.rows[seq].blocks:
                    self.received[seq] = self.replica.rows[seq].length - 1, self.replica.tokens[seq][-1:]


@fault(
    "KVP-TP-007",
    "a resumed sequence reaches the workers as zeros and its last token",
    model="jianzhnie/mini-vllm: a resumed sequence reaches the workers as zeros",
)
class ZerosAtResume(Group):
    class driver_type(Driver):  # noqa: N801
        def _operation(self, plan: Plan, name: str, seq: int, tokens: Sequence[int], hit: Hit) -> int | None:
            answer = super()._operation(plan, name, seq, tokens, hit)
            if name == "resume":
                change = plan.changes[-1]
                zeros = [0] * (len(change.tokens) - 1) + list(change.tokens[-1:])
                plan.changes[-1] = change._replace(tokens=zeros)
            return answer


# ------------------------------------------------------------ TP-008


@fault("KVP-TP-008", "whole tables are sent in every step", model="vllm-project/vllm#47936")
class WholeTables(Group):
    class driver_type(Driver):  # noqa: N801
        def _operation(self, plan: Plan, name: str, seq: int, tokens: Sequence[int], hit: Hit) -> int | None:
            answer = super()._operation(plan, name, seq, tokens, hit)
            if name == "append":
                change: Change = plan.changes[-1]
                blocks = self.rank.replica.rows[seq].blocks + tuple(change.blocks)
                plan.changes[-1] = change._replace(kept=0, blocks=blocks)
            return answer


# ------------------------------------------------------------ TP-009


class _Beside:
    """What one rank tells another lies in memory that both see.

    covers: what is sent over the network instead, by source, number and bytes of a message; None: nothing.
    """

    def __init__(self, network: Network, covers: Callable[[int, int, bytes], bytes | None]) -> None:
        self.network, self.covers = network, covers
        self.running, self.wait = network.running, network.wait
        self.count = 0
        self.last: dict[tuple[int, int], bytes] = {}
        self.unseen: dict[int, list[tuple[int, bytes]]] = {}

    def send(self, source: int, target: int, data: bytes) -> None:
        self.count += 1
        self.last[source, target] = data
        cover = self.covers(source, self.count, data)
        if cover is None:
            self.unseen.setdefault(target, []).append((source, data))
        else:
            self.network.send(source, target, cover)

    def receive(self, rank: int) -> tuple[int, bytes] | None:
        if self.unseen.get(rank):
            return self.unseen[rank].pop(0)
        came = self.network.receive(rank)
        return None if came is None else (came[0], self.last[came[0], rank])


SHORTCUT = "KKKZOZ/nano-vllm: steps go through the shared memory of one machine, unanswered"


@fault("KVP-TP-009", "ranks share their memory, and nothing is sent", model=SHORTCUT)
def nothing_sent(pools: Sequence[int], block_size: int, network: Network) -> Group:
    return Group(pools, block_size, _Beside(network, lambda *_: None))


@fault("KVP-TP-009", "a message says only that there is something in shared memory", model=SHORTCUT)
def constant_sent(pools: Sequence[int], block_size: int, network: Network) -> Group:
    return Group(pools, block_size, _Beside(network, lambda *_: b"look"))


@fault("KVP-TP-009", "a message has the length of the decision in it, not the decision", model=SHORTCUT)
def filling_sent(pools: Sequence[int], block_size: int, network: Network) -> Group:
    def covers(source: int, number: int, data: bytes) -> bytes:
        return shake_128(b"%d" % number).digest(len(data))

    return Group(pools, block_size, _Beside(network, covers))


@fault("KVP-TP-009", "the driver looks into the memory of the others for their answers", model=SHORTCUT)
def answers_not_sent(pools: Sequence[int], block_size: int, network: Network) -> Group:
    return Group(pools, block_size, _Beside(network, lambda source, _, data: data if source == 0 else None))

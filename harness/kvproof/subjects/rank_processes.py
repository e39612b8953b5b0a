"""A group of ranks in real processes, with the members of `kvproof.contract.RankGroup`."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvproof import contract
from kvproof.contract import RankGone, RankLost, Refused, UnknownSequence
from kvproof.records import Operation
from kvproof.subjects.crew import Crew, Member
from kvproof.subjects.drive import Nonsense
from kvproof.subjects.network import Hung, information

TIMEOUT, SHORT = 4.0, 0.8
"""Seconds in which a rank answers; short where messages are lost and ranks stop, which costs that time."""
MOST = 9.0
"""Seconds for one order: less than a call may take."""
DYING = 0.1
"""Seconds in which a process that is about to end has ended."""
CLOSING = 0.3
"""Seconds in which a rank leaves its group; a process that takes longer is ended, not used again."""
MEMBERS = ("step", "serve", "stop", "form", "table", "digest", "epoch", "free_blocks", "lost")
OPTIONS = {"local_evict": "evict", "worker_view": "view", "refusing": "refuse"}
ARGUMENTS = ("rank", "world", "num_blocks", "block_size", "rendezvous")


def is_of_one_rank(make: Callable[..., Any]) -> bool:
    """Whether the factory makes one rank in a process of its own."""
    with contextlib.suppress(TypeError, ValueError):
        return tuple(inspect.signature(make).parameters)[: len(ARGUMENTS)] == ARGUMENTS
    return False


def widened(pools: Sequence[int], world: int) -> tuple[int, ...]:
    """Pools of a larger group of the same capacity; world 0: any will do."""
    return (*pools, *[max(pools)] * (world - len(pools)))


class ProcessNetwork:
    """What a history does to processes and their messages; see `SimulatedNetwork`."""

    def __init__(self, history: Sequence[Operation]) -> None:
        faults = [f for op in history for f in (op.args or {}).get("faults", ())]
        self.ends = any(f["kind"] in ("kill", "stop") for f in faults)
        self.timeout = SHORT if any("message" in f or f["kind"] == "stop" for f in faults) else TIMEOUT
        self.faults: Sequence[Mapping[str, Any]] = ()
        self.members: list[Member] = []
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.behind: set[int] = set()
        """Ranks that run and belong to no group any more."""
        self.messages = self.bytes = 0
        self.sent: Callable[[], dict[int, Any]] = dict
        """By rank that runs: what its tap saw since the last time."""
        self.begin()

    def begin(self) -> None:
        self.letters: list[tuple[int, int, bytes]] = []
        """(source, target, data) since the decision began."""

    def heard(self) -> dict[int, list[int]]:
        """As of the simulated network, but for the order: when a message came is not known here."""
        found = self.sent()
        self.messages = sum(messages for messages, _, _ in found.values())
        self.bytes = sum(size for _, size, _ in found.values())
        self.letters += [(rank, *letter) for rank, (_, _, letters) in found.items() for letter in letters]
        ranks = range(len(self.members))
        ways = {(source, target) for source, target, _ in self.letters}
        # What a rank has sent that does not answer any more is not known: it may be anything.
        ways |= {(rank, other) for rank in ranks if not self.running(rank) for other in ranks}
        heard = {rank: {rank} for rank in ranks}
        while more := [(s, t) for s, t in ways if not heard[s] <= heard[t]]:
            for source, target in more:
                heard[target] |= heard[source]
        return {rank: sorted(those) for rank, those in heard.items()}

    def told(self, rank: int) -> int:
        return information([data for _, target, data in self.letters if target == rank])

    def arm(self, faults: Sequence[Mapping[str, Any]]) -> None:
        self.faults = faults

    def running(self, rank: int) -> bool:
        return rank not in self.dead and rank not in self.stopped and rank not in self.behind

    def resume(self, rank: int) -> None:
        self.members[rank].signal("SIGCONT")
        self.stopped.discard(rank)

    def look(self) -> None:
        """See who has ended or stopped."""
        self.dead |= {r for r, m in enumerate(self.members) if m.dead()}
        self.stopped |= {r for r, m in enumerate(self.members) if r not in self.dead and m.stopped()}


class ProcessGroup:
    """Rank r has pools[r] blocks, in the process members[r]."""

    def __init__(self, crew: Crew, pools: Sequence[int], block_size: int, network: ProcessNetwork) -> None:
        if crew.world and network.ends:
            raise Refused("a rank that ends or stops: torchrun would end all others")
        pools = widened(pools, crew.world)
        self.crew, self.network = crew, network
        network.members = self.members = crew.take(len(pools))
        network.sent = self._sent
        self.formed = list(range(len(pools)))
        self.driver = 0
        self.armed = False
        self.seqs: set[int] = set()
        self._seen: dict[int, dict[str, Any]] = {}
        place, world = crew.rendezvous(), len(pools)
        orders = {r: (r, world, n, block_size, place, network.timeout) for r, n in enumerate(pools)}
        try:
            opened = self._all("open", orders)
            bad = {r: a for r, a in opened.items() if isinstance(a, Exception)}
            if bad:
                raise next(iter(bad.values()))
        except BaseException:
            self.close()
            raise
        self.capabilities = frozenset(opened[0]["capabilities"])
        wanted = {*MEMBERS, *(m for c, m in OPTIONS.items() if c in self.capabilities)}
        if absent := wanted - set(opened[0]["members"]):
            self.close()
            raise Nonsense(f"a rank process has no {', '.join(sorted(absent))}")

    # ------------------------------------------------------------ orders

    def _answer(self, rank: int, limit: float = MOST) -> Any:
        """Of the last order to the rank; an exception of its is returned, not raised.

        Raises:
            RankGone: the process has ended or stopped. Hung: it does not answer within the limit.
        """
        member, until = self.members[rank], time.monotonic() + limit
        while time.monotonic() < until:
            try:
                answer = member.answer(0.05)
            except EOFError:
                if member.process is not None:
                    member.process.join(1)
                self.network.dead.add(rank)
                raise RankGone(rank) from None
            if answer is not None:
                return answer[1] if answer[0] == "ok" else _error(rank, *answer)
            if member.stopped():
                self.network.stopped.add(rank)
                raise RankGone(rank)
        raise Hung(f"rank {rank} has not answered for {limit:g} s")

    def _ask(self, rank: int, name: str, *args: Any) -> Any:
        self.members[rank].send(name, *args)
        answer = self._answer(rank)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _all(self, name: str, orders: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Answers of the ranks at once; of one that has ended there is none."""
        for rank, args in orders.items():
            self.members[rank].send(name, *args)
        found = {}
        for rank in orders:
            with contextlib.suppress(RankGone):
                found[rank] = self._answer(rank)
        return found

    def _others(self) -> list[int]:
        return [r for r in self.formed if r != self.driver and self.network.running(r)]

    # ------------------------------------------------------------ what a history does

    def step(self, operations: Sequence[tuple[Any, ...]]) -> list[Any]:
        self.seqs |= {o[1] for o in operations if len(o) > 1 and type(o[1]) is int and o[1] >= 0}
        self._seen = {}
        faults = self.network.faults
        if faults or self.armed:
            self._arm(faults)
        try:
            if not self.network.running(self.driver):
                raise RankGone(self.driver)
            answers = list(self._ask(self.driver, "step", list(operations)))
        except (RankGone, RankLost):
            self._look(faults)
            self._settle()
            raise
        finally:
            self._look(faults)
            if self.armed:
                self._arm(())
        return answers

    def _look(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Who ended in this step; a process needs a moment for it."""
        until = time.monotonic() + (DYING if any("rank" in f for f in faults) else 0)
        before = self.network.dead | self.network.stopped
        self.network.look()
        while before == self.network.dead | self.network.stopped and time.monotonic() < until:
            time.sleep(0.01)
            self.network.look()

    def _arm(self, faults: Sequence[Mapping[str, Any]]) -> None:
        """Tell each rank what happens to its messages: a request goes to all, then all answer."""
        others = [r for r in self.formed if r != self.driver]
        ends = {f["rank"]: f for f in faults if "rank" in f}
        of_rank: dict[int, dict[int, Any]] = {}
        for fault in faults:
            if "message" in fault and others:
                turn, place = divmod(fault["message"], 2 * len(others))
                if place < len(others):
                    of_rank.setdefault(self.driver, {})[turn * len(others) + place] = fault
                else:
                    of_rank.setdefault(others[place - len(others)], {})[turn] = fault
        running = [r for r in self.formed if self.network.running(r)]
        self._all("arm", {r: (of_rank.get(r, {}), ends.get(r)) for r in running})
        for rank in running:
            if rank in ends and not ends[rank]["events"]:
                self.members[rank].signal("SIGKILL" if ends[rank]["kind"] == "kill" else "SIGSTOP")
        self._look([f for f in faults if f.get("events") == 0])
        self.armed = bool(faults)

    def _settle(self) -> None:
        """Every survivor has seen the loss."""
        limit = min(self.network.timeout * 1.5 + 2, MOST - 1)
        for rank, answer in self._all("settled", dict.fromkeys(self._others(), (limit,))).items():
            if isinstance(answer, Exception):
                raise answer
            if not answer:
                raise Hung(f"rank {rank} still waits {limit:g} s after the loss of another")

    def form(self) -> None:
        network = self.network
        network.look()
        self._seen = {}
        if network.running(self.driver):
            self._ask(self.driver, "stop")
        self._settle()
        asked = [r for r in self.formed if network.running(r)]
        found = self._all("form", dict.fromkeys(asked, ()))
        if not found:
            raise RankLost(self.formed, "no rank is left")
        late, lost = set[int](), set[int]()
        for rank, answer in found.items():
            if isinstance(answer, RankLost) and set(answer.ranks) == {rank}:
                late.add(rank)
            elif isinstance(answer, RankLost):
                lost |= set(answer.ranks)
            elif isinstance(answer, Exception):
                raise answer
        network.behind |= late | {r for r in self.formed if r in network.stopped}
        if lost:
            self._settle()
            raise RankLost(sorted(lost | late), "lost while the group was formed")
        self.formed = [r for r, answer in found.items() if not isinstance(answer, RankLost)]
        drivers = [r for r in self.formed if found[r]]
        if len(drivers) != 1:
            raise Nonsense(f"after form ranks {drivers} drive; it has to be one")
        self.driver = drivers[0]
        if late:
            raise RankLost(sorted(late), "left behind")

    # ------------------------------------------------------------ what it answers

    def _state(self, rank: int) -> dict[str, Any]:
        if rank not in self._seen:
            views = "worker_view" in self.capabilities
            self._seen[rank] = self._ask(rank, "state", sorted(self.seqs), views)
        return self._seen[rank]

    def table(self, rank: int, seq: int) -> Any:
        tables = self._state(rank)["tables"]
        if seq not in tables:
            raise UnknownSequence(f"no sequence {seq}")
        return tables[seq]

    def digest(self, rank: int) -> Any:
        return self._state(rank)["digest"]

    def epoch(self, rank: int) -> Any:
        return self._state(rank)["epoch"]

    def free_blocks(self, rank: int) -> Any:
        return self._state(rank)["free"]

    def lost(self, rank: int) -> Any:
        return self._state(rank)["lost"]

    def view(self, rank: int, seq: int) -> Any:
        return self._state(rank)["views"][seq]

    def evict(self, rank: int, count: int) -> Any:
        self._seen = {}
        return self._ask(rank, "evict", count)

    def refuse(self, rank: int) -> None:
        self._ask(rank, "refuse")

    def _sent(self) -> dict[int, Any]:
        answers = self._all("sent", {r: () for r in range(len(self.members)) if self.network.running(r)})
        return {r: answer for r, answer in answers.items() if not isinstance(answer, Exception)}

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Processes that are whole serve the next history."""
        network = self.network
        network.look()
        usable: dict[int, bool] = {}
        order = sorted(r for r in range(len(self.members)) if r not in network.dead | network.stopped)
        for rank in order:
            self.members[rank].send("close", CLOSING)
        for rank in order:
            with contextlib.suppress(RankGone, Hung):
                usable[rank] = self._answer(rank, CLOSING + 1) is True
        kept = [m for r, m in enumerate(self.members) if usable.get(r)]
        for member in self.members:
            if member not in kept:
                member.end()
        self.crew.give_back(kept)


def _error(rank: int, name: str, text: str, more: Any) -> Exception:
    """What a rank has raised."""
    if name == "RankLost":
        why = text.partition(": ")[2]
        return RankLost(more, why or text)
    kind = getattr(contract, name, None)
    if isinstance(kind, type) and issubclass(kind, contract.ContractError):
        return kind(text)
    return Nonsense(f"rank {rank}: {more}")


class GroupFactory:
    """What `make_ranks` is for a group in one object; keeps the processes between two groups."""

    def __init__(self, spec: str) -> None:
        self.crew = Crew(spec)

    def __call__(self, pools: Sequence[int], block_size: int, network: ProcessNetwork) -> ProcessGroup:
        return ProcessGroup(self.crew, pools, block_size, network)

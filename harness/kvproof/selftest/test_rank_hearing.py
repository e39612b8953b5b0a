"""Who can know of a step: the harness follows what messages carry, through other ranks too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvproof.checks.ranks import judge_ranks
from kvproof.histories.directed import cases
from kvproof.records import Case
from kvproof.subjects.calls import no_clock
from kvproof.subjects.network import SimulatedNetwork, information
from kvproof.subjects.rank_processes import ProcessNetwork
from kvproof.subjects.worker import run_case
from kvproof_impls.reference.ranks import Group

CASES = {case.id: case for case in cases() if case.pools}


def test_news_travel_through_other_ranks_and_only_when_they_arrive() -> None:
    network = SimulatedNetwork(3)
    network.send(0, 1, b"step")
    assert network.heard() == {0: [0], 1: [1], 2: [2]}
    network.receive(1)
    network.send(1, 2, b"passed on")
    network.receive(2)
    assert network.heard() == {0: [0], 1: [0, 1], 2: [0, 1, 2]}
    assert network.told(2) == information([b"passed on"])
    assert network.told(0) == 0


def test_what_is_lost_noise_or_of_an_earlier_decision_carries_no_news() -> None:
    network = SimulatedNetwork(2)
    network.arm([{"message": 0, "kind": "drop"}, {"message": 1, "kind": "noise"}])
    network.send(0, 1, b"lost")
    network.send(0, 1, b"noisy")
    came = network.receive(1)
    assert came is not None
    assert len(came[1]) == 5
    assert came[1] != b"noisy"
    network.send(0, 1, b"late")
    network.begin()
    assert network.receive(1) == (0, b"late")
    assert network.heard()[1] == [1]
    assert network.told(1) == 0


def test_of_processes_the_ways_are_known_but_for_the_dead() -> None:
    network = ProcessNetwork(())
    network.members = [None] * 4  # type: ignore[list-item]
    network.sent = lambda: {0: (1, 4, [(1, b"step")]), 1: (1, 2, [(2, b"on")])}
    assert network.heard() == {0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [3]}
    assert (network.messages, network.bytes) == (2, 6)
    network.dead = {2}
    network.sent = dict
    assert network.heard()[3] == [0, 1, 2, 3], "what the dead have sent nobody can say"
    network.begin()
    assert network.heard()[1] == [1, 2]


class Chain:
    """Rank r reaches its neighbours only: they pass on what is not for them."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.running, self.wait = network.running, network.wait

    def send(self, source: int, target: int, data: bytes) -> None:
        self._pass(source, bytes((source, target)) + data)

    def _pass(self, rank: int, letter: bytes) -> None:
        self.network.send(rank, rank + (1 if letter[1] > rank else -1), letter)

    def receive(self, rank: int) -> tuple[int, bytes] | None:
        while came := self.network.receive(rank):
            letter = came[1]
            if letter[1] == rank:
                return letter[0], letter[2:]
            self._pass(rank, letter)
        return None


def chained(pools: Sequence[int], block_size: int, network: Any) -> Group:
    return Group(pools, block_size, Chain(network))


@pytest.mark.parametrize("name", ["tp/heard-4", "tp/steps-8", "tp/told", "tp/hit-shared"])
def test_any_way_between_the_ranks_will_do(name: str) -> None:
    case: Case = CASES[name]
    assert judge_ranks(case, run_case(chained, case, no_clock)) == []

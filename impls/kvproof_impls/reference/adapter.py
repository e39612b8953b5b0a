"""The factories that the suite opens: `reference`, and two variants of it."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.contract import Network, RankProcess

from . import rank as messages
from .manager import Manager
from .ranks import Group
from .scheduler import Scheduler


def make(num_blocks: int, block_size: int) -> Manager:
    """All capabilities, prefix caching on."""
    return Manager(num_blocks, block_size)


def make_uncached(num_blocks: int, block_size: int) -> Manager:
    """Prefix caching off: tokens are counted and never read."""
    return Manager(num_blocks, block_size, caching=False)


def make_reserved(num_blocks: int, block_size: int) -> Manager:
    """Block 0 is reserved, as for engines that send padding there."""
    return Manager(num_blocks, block_size, reserved=1)


def make_scheduler(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """First come, first served; preempted requests are computed again; prefix caching on."""
    return Scheduler(make(num_blocks, block_size), max_seqs, max_tokens)


def make_scheduler_uncached(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """The same with prefix caching off."""
    return Scheduler(make_uncached(num_blocks, block_size), max_seqs, max_tokens)


def make_scheduler_swap(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """Preempted requests go to the host tier."""
    return Scheduler(make(num_blocks, block_size), max_seqs, max_tokens, swap=True)


def make_scheduler_priority(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> Scheduler:
    """Higher priorities go first."""
    return Scheduler(make(num_blocks, block_size), max_seqs, max_tokens, order="priority")


def make_ranks(pools: Sequence[int], block_size: int, network: Network) -> Group:
    """Tensor-parallel ranks that number their blocks alike."""
    return Group(pools, block_size, network)


def make_ranks_own(pools: Sequence[int], block_size: int, network: Network) -> Group:
    """The same with block numbers of each rank's own."""
    return Group(pools, block_size, network, own_ids=True)


def make_rank_process(
    rank: int, world: int, num_blocks: int, block_size: int, rendezvous: str
) -> RankProcess:
    """One rank, in a process of its own; needs torch."""
    from .member import join

    return join(rank, world, num_blocks, block_size, rendezvous)


def message_parts(data: bytes) -> dict[str, int]:
    """What a message of the ranks consists of, in bytes: tokens, tables, digest, and so on."""
    return messages.message_parts(data)

"""Factories of the plain manager, with and without a prefix cache; block 0 is reserved."""

from collections.abc import Sequence

from kvproof.contract import Network
from kvproof_impls.plain.manager import PlainManager
from kvproof_impls.plain.ranks import PlainRanks
from kvproof_impls.plain.scheduler import PlainScheduler

BASE = {"fork", "copies", "refcount", "multi", "defer", "truncate", "batch", "slots"}


def make(num_blocks: int, block_size: int) -> PlainManager:
    """The plain manager with everything it can do."""
    return PlainManager(num_blocks, block_size, frozenset(BASE | {"prefix", "keys"}))


def make_uncached(num_blocks: int, block_size: int) -> PlainManager:
    """The same without prefix cache: nothing is published, nothing is found."""
    return PlainManager(num_blocks, block_size, frozenset(BASE))


def make_scheduler(num_blocks: int, block_size: int, max_seqs: int, max_tokens: int) -> PlainScheduler:
    """Continuous batching over the plain manager with its prefix cache."""
    return PlainScheduler(make(num_blocks, block_size), max_seqs, max_tokens)


def make_ranks(pools: Sequence[int], block_size: int, network: Network) -> PlainRanks:
    """Tensor-parallel ranks that all do the same; without a prefix cache."""
    return PlainRanks(pools, block_size, network)

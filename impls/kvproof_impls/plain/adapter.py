"""Factories of the plain manager, with and without a prefix cache; block 0 is reserved."""

from kvproof_impls.plain.manager import PlainManager
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

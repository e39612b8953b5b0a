"""Opens every planted fault by its name: `faulty:shared_block_queued`."""

from __future__ import annotations

from kvproof.contract import BadInput
from kvproof_impls.reference.manager import Manager

from . import (
    batch,
    errors,
    evict,
    kernel_calls,
    kernel_values,
    kernels,
    keys,
    lives,
    pool,
    preemption,
    prefix,
    progress,
    ranks,
    relations,
    resume,
    scheduling,
    sharing,
    swap,
    tables,
    weak_keys,
)
from .registry import FAULTS, Make

__all__ = ["FAULTS", "make"]
PLANTED = (
    *(pool, sharing, tables, batch, keys, weak_keys, prefix, evict, swap, errors),
    *(scheduling, progress, lives, preemption, resume, relations, ranks),
    *(kernels, kernel_values, kernel_calls),
)
"""The modules that have entered their faults in FAULTS."""


def make(num_blocks: int, block_size: int) -> Manager:
    """There is no fault without a name.

    Raises:
        BadInput: always; it lists the names.
    """
    raise BadInput(f"name a planted fault, as in faulty:NAME; there are: {', '.join(sorted(FAULTS))}")


def __getattr__(name: str) -> Make:
    try:
        return FAULTS[name].make
    except KeyError:
        raise AttributeError(f"no planted fault {name!r}; there are: {', '.join(sorted(FAULTS))}") from None

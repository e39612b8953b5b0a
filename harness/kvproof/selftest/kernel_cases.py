"""Kernel cases of tests."""

from __future__ import annotations

from typing import Any

from kvproof.histories.kernels import call
from kvproof.records import Case, Setting


def case_of(
    *calls: Any, num_blocks: int = 24, block_size: int = 4, aim: tuple[str, ...] = (), **setting: Any
) -> Case:
    return Case(
        id="x",
        aim=aim,
        num_blocks=num_blocks,
        block_size=block_size,
        history=calls or (call(),),
        kernel=Setting(**setting),
    )

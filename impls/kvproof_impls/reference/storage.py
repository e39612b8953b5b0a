"""Real storage behind the blocks, one float64 a slot: what a device would hold.

Nothing is allocated before the first write. Block copies are applied when they happen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.contract import Block

from .inputs import whole


class Storage:
    """[num_blocks, block_size] on the device and as much on the host."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._shape = num_blocks, block_size
        self._device: NDArray[np.float64] | None = None
        self._host: NDArray[np.float64] | None = None

    def write(self, block: int, offset: int, x: float) -> None:
        """Put x into a slot; BadInput if there is no such slot."""
        at = self._slot(block, offset)
        if self._device is None:
            self._device = np.zeros(self._shape)
        self._device[at] = x

    def read(self, block: int, offset: int) -> float:
        """What a slot holds, 0.0 if it was never written."""
        at = self._slot(block, offset)
        return 0.0 if self._device is None else self._device.item(*at)

    def copy(self, pairs: Sequence[tuple[Block, Block]]) -> None:
        """Copy whole blocks in this order; `("host", i)` is on the host."""
        if self._device is None:
            return
        if self._host is None:
            self._host = np.zeros(self._shape)
        for source, target in pairs:
            self._row(target)[:] = self._row(source)

    def _row(self, block: Block) -> NDArray[np.float64]:
        assert self._device is not None
        assert self._host is not None
        tier, at = (self._host, block[1]) if isinstance(block, tuple) else (self._device, block)
        row: NDArray[np.float64] = tier[at]
        return row

    def _slot(self, block: int, offset: int) -> tuple[int, int]:
        return whole(block, "block", 0, self._shape[0] - 1), whole(offset, "offset", 0, self._shape[1] - 1)

"""Who holds which block, as the block tables of a scheduler say."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.bench.subject import Wrong


class Holdings:
    """Blocks in the tables of running requests.

    repeats: entries of all tables beyond the first of each block, so that a shared one counts once.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self.repeats = 0

    def __len__(self) -> int:
        """Blocks that are in some table."""
        return len(self._holders)

    def take(self, blocks: Sequence[int], shared: int) -> None:
        """A request gets these blocks; the first `shared` of them it may have found in the cache.

        Raises:
            Wrong: one of the others is in a table already. Nothing has changed then, if it is another's.
        """
        holders = self._holders
        for block in blocks[shared:]:
            if block in holders:
                raise Wrong(f"block {block} is handed out while another request holds it")
        for place, block in enumerate(blocks):
            count = holders.get(block, 0)
            if count:
                if place >= shared:
                    raise Wrong(f"block {block} is twice in a table")
                self.repeats += 1
            holders[block] = count + 1

    def drop(self, blocks: Sequence[int]) -> None:
        """A request gives these back."""
        holders = self._holders
        for block in blocks:
            count = holders[block]
            if count > 1:
                self.repeats -= 1
                holders[block] = count - 1
            else:
                del holders[block]

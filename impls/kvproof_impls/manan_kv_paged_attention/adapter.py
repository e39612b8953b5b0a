"""manankapoor23/KV-Paged-Attention, read from a checkout: a pool of page objects, a table entry a token."""

from typing import Any

from kvproof.contract import OutOfBlocks, require_sizes
from kvproof_impls.by_token import ByToken
from kvproof_impls.checkout import open_package

open_package("pages")
from pages import page_pool, page_table  # noqa: E402

page_pool.print = lambda *_: None  # it prints at every page


class MananManager(ByToken):  # its prefix cache is a dict that the caller fills
    capabilities = frozenset({"blocks"})
    full = OutOfBlocks

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.pool, self.live = page_pool.PagePool(num_blocks, block_size, 1, 1, 1, "cpu"), {}
        self.pages = {page.page_id: page for page in self.pool.free_pages}

    def start(self, seq: int, tokens: list[int]) -> Any:
        return [], page_table.PageTable()

    def grow(self, cache: Any, token: int) -> None:
        blocks, table = cache
        if not blocks or not self.pages[blocks[-1]].has_space():
            blocks.append(self.alloc())
        table.add(blocks[-1], self.pages[blocks[-1]].allocate_slot())

    def free(self, seq: int) -> None:
        for block in self.live.pop(seq)[0]:
            self.release(block)

    def table(self, seq: int) -> list[int]:
        return list(dict.fromkeys(page for page, _ in self.live[seq][1].table))

    def free_blocks(self) -> int:
        return len(self.pool.free_pages)

    def alloc(self) -> int:
        if not self.pool.free_pages:
            raise OutOfBlocks("no free page")  # else it raises RuntimeError
        page = self.pool.allocate_page()
        page.ref_count = 1  # the caller counts, in their programs too
        return page.page_id

    def retain(self, block: int) -> None:
        self.pages[block].ref_count += 1

    def release(self, block: int) -> None:
        if self.pages[block].ref_count > 1:
            self.pages[block].ref_count -= 1
        else:
            self.pool.free_page(self.pages[block])


make = MananManager

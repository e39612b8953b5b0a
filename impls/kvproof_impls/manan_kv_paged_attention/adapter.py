"""manankapoor23/KV-Paged-Attention, read from a checkout: a pool of page objects, a table entry a token."""

from kvproof.contract import OutOfBlocks, require_new, require_tokens
from kvproof_impls.checkout import open_package

open_package("pages")
from pages import page_pool, page_table  # noqa: E402

page_pool.print = lambda *_: None  # it prints at every page


class MananManager:
    capabilities = frozenset({"blocks"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool, self.live = page_pool.PagePool(num_blocks, block_size, 1, 1, 1, "cpu"), {}
        self.pages = {page.page_id: page for page in self.pool.free_pages}

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        self.live[seq] = [], page_table.PageTable()
        try:
            for token in tokens:
                self.append(seq, [token])
        except OutOfBlocks:
            self.free(seq)  # what it took is left to the caller
            raise
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        blocks, table = self.live[seq]
        if not blocks or not self.pages[blocks[-1]].has_space():
            blocks.append(self.alloc())
        table.add(blocks[-1], self.pages[blocks[-1]].allocate_slot())

    def commit(self, seq: int, computed: int) -> None:
        pass  # its prefix cache is a dict that the caller fills

    def free(self, seq: int) -> None:
        for block in self.live.pop(seq)[0]:
            self.release(block)

    def table(self, seq: int) -> list[int]:
        return list(dict.fromkeys(page for page, _ in self.live[seq][1].table))

    def free_blocks(self) -> int:
        return len(self.pool.free_pages)

    def alloc(self) -> int:
        try:
            page = self.pool.allocate_page()
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from None
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

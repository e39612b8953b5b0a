"""JINO-ROHIT/nano-paged-attention, read from a checkout: a block manager whose blocks are page objects."""

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens
from kvproof_impls.checkout import open_folder

open_folder("")
import paged_attention  # noqa: E402


class PageManager:
    capabilities = frozenset({"refcount"})

    def __init__(self, num_blocks: int, block_size: int) -> None:
        require_sizes(num_blocks, block_size)
        self.manager, self.live = paged_attention.BlockManager(num_blocks, block_size), {}
        self.numbers = {page: number for number, page in enumerate(self.manager.pages)}
        self.block_size = block_size

    def add(self, seq: int, tokens: list[int]) -> int:
        require_new(seq, self.live)
        require_tokens(tokens)
        request = paged_attention.Sequence(seq, list(tokens), self.block_size)
        if not self.manager.allocate_for_sequence(request):
            raise OutOfBlocks(f"no room for {len(tokens)} tokens")
        self.live[seq] = request
        return 0

    def append(self, seq: int, tokens: list[int]) -> None:
        require_tokens(tokens)
        self.live[seq].append_token(tokens[0])
        if not self.manager.allocate_for_sequence(self.live[seq]):
            self.live[seq].tokens.pop()
            raise OutOfBlocks("no free page")

    def commit(self, seq: int, computed: int) -> None:
        pass  # no prefix cache

    def free(self, seq: int) -> None:
        self.manager.free_sequence(self.live.pop(seq))

    def table(self, seq: int) -> list[int]:
        pages = map(self.live[seq].page_table.get_page, self.live[seq].logical_pages)
        return [self.numbers[page] for page in pages]

    def free_blocks(self) -> int:
        return self.manager.get_num_free_pages()

    def refcount(self, block: int) -> int:
        return self.manager.pages[block].ref_count


make = PageManager

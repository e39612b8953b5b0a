"""bLLM: block allocator and page table, used as in its decode loop."""

from __future__ import annotations

import torch
from bllm.core.block_allocator import BlockAllocator
from bllm.core.page_table import PageTable

from kvproof.contract import OutOfBlocks, Refused, require_new, require_sizes, require_tokens

ROWS, WIDTH, CELLS = 1100, 1 << 16, 1 << 25


class Manager:
    capabilities = frozenset({"batch"})

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        self.blocks, self.size = BlockAllocator(num_blocks, block_size), block_size
        width = min(num_blocks, WIDTH)
        rows = min(num_blocks, ROWS, CELLS // width)  # its table has them all from the start
        self.pages = PageTable(rows, width, block_size, device="cpu")
        self.rows, self.live = list(range(rows)), {}

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        if -(-len(tokens) // self.size) > WIDTH:
            raise Refused(f"{len(tokens)} tokens: a row of the page table has {WIDTH} blocks")
        try:
            blocks = self.blocks.allocate(-(-len(tokens) // self.size))
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from error
        row = self.live[seq] = self.rows.pop()
        self.pages.append_blocks(row, blocks)
        self.pages.set_seq_length(row, len(tokens))
        return 0

    def append(self, seq, tokens):
        require_tokens(tokens)
        row = self.live[seq]
        length = self.pages.get_seq_length(row)
        if length % self.size == 0:
            try:
                self.pages.append_blocks(row, [self.blocks.allocate_one()])
            except RuntimeError as error:
                raise OutOfBlocks(str(error)) from error
        self.pages.set_seq_length(row, length + 1)

    def commit(self, seq, computed):
        assert seq in self.live

    def free(self, seq):
        row = self.live.pop(seq)
        self.blocks.free(self.pages.clear_sequence(row))
        self.rows.append(row)

    def table(self, seq):
        return self.pages.get_physical_blocks(self.live[seq])

    def free_blocks(self):
        return self.blocks.num_free_blocks

    def batch(self, seqs):
        rows = [self.live[s] for s in seqs]
        if not rows:
            return torch.zeros((0, 1), dtype=torch.int32), torch.zeros(0), torch.zeros(0)
        counts = torch.tensor([self.pages.get_num_blocks(r) for r in rows])
        table = self.pages.get_batch_page_table(rows)[:, : int(counts.max())]
        return table, counts, self.pages.get_batch_seq_lengths(rows)


make = Manager

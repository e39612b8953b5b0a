"""smol-vllm: block manager; what it calls copy_on_write is a fork."""

from __future__ import annotations

from smol_vllm.block_manager import BlockSpaceManager

from kvproof.contract import OutOfBlocks, UnknownSequence, require_new, require_sizes, require_tokens


class Manager:
    capabilities = frozenset({"fork"})

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        self.manager = BlockSpaceManager(num_blocks, block_size)

    def add(self, seq, tokens):
        require_new(seq, ())  # nothing in it looks whether an id is live
        require_tokens(tokens)
        try:
            self.manager.allocate(seq, len(tokens))
        except ValueError as error:
            raise OutOfBlocks(str(error)) from error
        return 0

    def append(self, seq, tokens):
        require_tokens(tokens)
        self.known(seq)
        try:
            self.manager.append_token(seq)
        except ValueError as error:
            raise OutOfBlocks(str(error)) from error

    def commit(self, seq, computed):
        self.known(seq)

    def free(self, seq):
        self.manager.free(seq)

    def table(self, seq):
        self.known(seq)
        return self.manager.get_block_table(seq)

    def free_blocks(self):
        return self.manager.num_free_blocks()

    def fork(self, parent, child):
        self.known(parent)
        require_new(child, self.manager._block_tables)
        self.manager.copy_on_write(parent, child)

    def known(self, seq):
        if seq not in self.manager._block_tables:
            raise UnknownSequence(f"no sequence {seq}")


make = Manager

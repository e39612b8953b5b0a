"""llm-infer, native engine: block pool and the page table of a sequence.

Its package imports what is not on any index, so two modules are opened from their files.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from kvproof.contract import OutOfBlocks, require_new, require_sizes, require_tokens


def opened(module):
    root = Path(importlib.util.find_spec("llm_infer").origin).parent
    path = root / "engines" / "native" / "kv_cache" / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"llm_infer_{module}", path)
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


BlockPool = opened("pool").BlockPool
SequenceKVCache = opened("sequence").SequenceKVCache


class Manager:
    capabilities = frozenset()

    def __init__(self, num_blocks, block_size):
        require_sizes(num_blocks, block_size)
        self.pool, self.live = BlockPool(num_blocks, block_size, 1, 1, 1, device="cpu"), {}

    def add(self, seq, tokens):
        require_new(seq, self.live)
        require_tokens(tokens)
        cache = SequenceKVCache()
        try:
            cache.allocate_for_prompt(self.pool, len(tokens))
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from error
        self.live[seq] = cache
        return 0

    def append(self, seq, tokens):
        require_tokens(tokens)
        try:
            self.live[seq].append_token(self.pool)
        except RuntimeError as error:
            raise OutOfBlocks(str(error)) from error

    def commit(self, seq, computed):
        assert seq in self.live

    def free(self, seq):
        self.live.pop(seq).free_all(self.pool)

    def table(self, seq):
        return self.live[seq].get_block_table()

    def free_blocks(self):
        return self.pool.num_free_blocks


make = Manager

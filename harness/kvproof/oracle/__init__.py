"""What should be there: histories of tokens, the sequence model, the LRU counter."""

"""Adapter to JINO-ROHIT/nano-paged-attention."""

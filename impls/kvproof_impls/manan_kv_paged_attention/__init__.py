"""Adapter to manankapoor23/KV-Paged-Attention."""

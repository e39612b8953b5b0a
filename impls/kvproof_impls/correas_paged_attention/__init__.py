"""Adapter to correaswebert/paged-attention."""

"""Adapter to VARUN3WARE/Paged-Attention."""

"""Paged-attention kernels and how they are built and launched."""

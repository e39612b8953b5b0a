"""The native CPU kernels."""

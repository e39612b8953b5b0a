"""The CUDA kernels on a GPU."""

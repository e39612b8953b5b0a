"""The CUDA kernels run on the CPU."""

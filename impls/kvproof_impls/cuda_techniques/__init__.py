"""The CUDA kernels with one of the four techniques of chapter 3.2.7 switched off."""

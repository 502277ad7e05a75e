"""Kernels in CUDA C++, for what Triton cannot say: loads under way across a barrier, work given to warps."""

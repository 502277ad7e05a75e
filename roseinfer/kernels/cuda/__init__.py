"""Kernels in CUDA C++, for what Triton lacks: loads in flight across barriers, control of single warps."""

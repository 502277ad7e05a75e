"""Kernels in CUDA C++, where Triton lacks something: loads in flight across barriers, work for each warp."""

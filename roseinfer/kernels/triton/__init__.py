"""Kernels in Triton. Each module names the PyTorch operators that give the same result."""

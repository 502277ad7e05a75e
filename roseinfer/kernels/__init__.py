"""Kernels that PyTorch does not have. Each has a plain PyTorch reference and a switch."""

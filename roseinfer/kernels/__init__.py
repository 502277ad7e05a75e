"""Kernels that PyTorch lacks. Each has a plain PyTorch reference, and a switch that turns it off."""

"""C++ kernels for CPUs, built by the machine's own compiler at first use."""

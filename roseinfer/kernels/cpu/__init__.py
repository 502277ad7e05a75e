"""C++ kernels for CPUs, built with the machine's compiler at first use."""

"""The runtime: argument binding and conversion, result allocation, calls of kernels, the disk cache."""

"""Kernels for CPUs through LLVM: the only place that imports llvmlite."""

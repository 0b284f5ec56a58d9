"""Compiles kernels for CPUs with LLVM: the only package that imports llvmlite."""

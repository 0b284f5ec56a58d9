"""Kernels as readable Python: run by CPython (the reference semantics of loops) or compiled by numba."""

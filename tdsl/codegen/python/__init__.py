"""Kernels as readable Python: run plainly (the meaning of the loops) or compiled by numba."""

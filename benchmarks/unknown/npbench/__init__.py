"""Kernels of NPBench (NumPy programs of linear algebra, stencils, physics, learning), by domain.

The programs are written from the reference of the language: they say what is computed, and nothing of how
loops run. Peers of all kernels are NumPy and numba.
"""

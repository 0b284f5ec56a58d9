"""Kernels of a GPU run on the CPU, all threads at once, with every access watched."""

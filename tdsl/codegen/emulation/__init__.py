"""Emulates kernels of a GPU on the CPU: runs threads in lockstep and checks every access for races."""

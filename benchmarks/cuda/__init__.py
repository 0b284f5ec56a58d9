"""Kernels of a GPU against cuBLAS, cuDNN, torch.compile, Triton and a copy: `python -m benchmarks cuda`.

A case (`cases.py`) is a line of a table: a program, how it is scheduled, sizes, and peers. With a GPU every
case is built, checked and timed (`measure.py`); without one it is built, and checked at small sizes by
emulation (`emulated.py`).
"""

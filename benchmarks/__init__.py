"""Timed comparisons of tdsl with its peers: `python -m benchmarks run`.

A case (`case.py`) is a computation with its input, a check of results, and peers that compute it. Each
peer runs in a process of its own (`worker.py`), because threads that one library leaves spinning slow the
next one down; the processes take turns (`rounds.py`), because machines are noisy.
"""

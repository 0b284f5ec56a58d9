"""Calls of compiled kernels: what the collector frees in a cycle."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

IN_A_CYCLE = """
import ctypes, gc
import numpy as np
import tdsl as td

i = td.vars("i")
for n in range(5):
    a, y = td.Tensor("a", ("N",), td.f32), td.Func("y")
    y[i] = a[i] * (n + 1)
    compiled = td.compile(y)
    compiled(np.ones(8, np.float32))
    cycle = [compiled]
    cycle.append(cycle)
    del compiled, cycle, a, y
    gc.collect()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others do not perturb memory")
def test_a_kernel_in_a_cycle_of_garbage_is_freed() -> None:
    freed = {"PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "2"}  # what was freed has other bytes
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CYCLE], env={**os.environ, **freed}, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

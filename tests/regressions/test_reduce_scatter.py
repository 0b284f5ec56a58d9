"""Large sums over ranks that each keep a part were wrong under MPI: what was sent did not live so long."""

from __future__ import annotations

from tests.distribute.test_mpi import needs_mpi, ranks

PROGRAM = """
import numpy as np, tdsl as td
from tests.distribute.matmuls import matmul
s = matmul.schedule(M=384, N=512, K=8)
for name, notation in (("A", "mk -> k"), ("B", "kn -> k"), ("C", "mn -> m")):
    s.place(name, notation, td.Grid(x=4))
s["C"].distribute("k", td.Grid(x=4))
rng = np.random.default_rng(0)
a, b = rng.integers(-9, 9, (384, 8)).astype(float), rng.integers(-9, 9, (8, 512)).astype(float)
p = td.compile(s)
for _ in range(3):
    np.testing.assert_array_equal(p(p.block("A", a), p.block("B", b)), p.block("C", a @ b))
"""


@needs_mpi
def test_a_large_sum_over_ranks_of_which_each_keeps_a_part() -> None:
    done = ranks(4, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr

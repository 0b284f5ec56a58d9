"""A product on ranks, timed: `mpiexec -n P python -m benchmarks.mpi.product M N K CALLS`.

Rank 0 prints one line of JSON, as `pdgemm.c` does: the time of each call in milliseconds, the bytes that all
ranks sent in one call, counted at the calls of MPI, and whether the result is right.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

import tdsl as td


@td.op
def matmul(A: td.f64["M", "K"], B: td.f64["K", "N"]):
    """C = A B."""
    i, j, k = td.vars("i j k")
    C = td.Func("C")
    C[i, j] = td.sum(A[i, k] * B[k, j], axis=k)
    return C


def main(m: int, n: int, k: int, calls: int) -> None:
    """Time some calls, the first of which is not counted."""
    comm = MPI.COMM_WORLD
    i, j = np.ogrid[:m, :k]
    a = ((7 * i + 13 * j + i * j % 5) % 17 - 8).astype(float)
    i, j = np.ogrid[:k, :n]
    b = ((11 * i + 3 * j + i * j % 7) % 19 - 9).astype(float)
    s = matmul.schedule(M=m, N=n, K=k)
    grid = td.recipes.cosma(s["C"], comm.size)
    p = td.compile(s)
    blocks = p.block("A", a), p.block("B", b)
    block, carried = p(*blocks, count=True)
    is_right = bool(np.array_equal(block, p.block("C", a @ b)))
    times = []
    for _ in range(calls):
        comm.Barrier()
        start = time.perf_counter()
        p(*blocks)
        comm.Barrier()
        times.append(1e3 * (time.perf_counter() - start))
    total = comm.reduce(carried.sent)
    is_right = comm.reduce(is_right, MPI.MIN)
    if comm.rank == 0:
        answer = {"ms": times, "bytes": total, "right": bool(is_right), "grid": grid.shape}
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

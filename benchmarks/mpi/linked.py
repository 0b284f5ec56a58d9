"""A program on ranks with slow links, timed: `mpiexec -n P python -m benchmarks.mpi.linked CASE CALLS`.

Rank 0 prints one line of JSON: the time of each call in milliseconds, whether results are right, and the
operations per second of a task.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tdsl as td

SIDE = 512  # of square matrices
ROWS = 8192  # of the product whose tasks take as long as its messages
STEPS = 8

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A program for two nodes of `per_node` ranks; `expected` computes its result with NumPy."""

    per_node: int
    inputs: dict[str, tuple[int, ...]]
    build: Callable[[], td.Schedule]
    expected: Callable[[Arrays], np.ndarray]
    ring: bool = False  # a ring in the order of ranks: no link between nodes has two messages at a time


def machine(per_node: int) -> list[td.Grid]:
    """Two nodes of some ranks each."""
    return [td.Grid(node=2), td.Grid(core=per_node)]


def exchange(per_node: int) -> td.Schedule:
    """Rows of a matrix become columns: each rank sends a part to each other one."""
    i, j = td.vars("i j")
    x, f = td.Tensor("x", (SIDE, SIDE), td.f64), td.Func("f")
    f[i, j] = 2 * x[i, j]
    grid = machine(per_node)
    s = td.Schedule(f).place(x, ("ij -> i", "ij -> i"), grid).place(f, ("ij -> j", "ij -> j"), grid)
    s[f].distribute((j, j), grid)
    return s


def all_reduce(grid: list[td.Grid]) -> td.Schedule:
    """Each rank has a row of a matrix, and gets the sums of all columns."""
    i, j = td.vars("i j")
    x, f = td.Tensor("x", (4, SIDE * SIDE), td.f64), td.Func("f")
    f[j] = td.sum(x[i, j], axis=i)
    s = td.Schedule(f)
    s.place(x, ("ij -> i",) * len(grid), grid).place(f, ("j -> *",) * len(grid), grid)
    s[f].distribute((i,) * len(grid), grid)
    return s


def product(prefetch: int) -> td.Schedule:
    """A product whose right operand arrives in steps, `prefetch` steps ahead."""
    i, j, k = td.vars("i j k")
    a, b = td.Tensor("a", (ROWS, SIDE), td.f64), td.Tensor("b", (SIDE, SIDE), td.f64)
    f = td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    grid = td.Grid(node=2)
    s = td.Schedule(f).place(a, "ik -> i", grid).place(b, "kj -> k", grid).place(f, "ij -> i", grid)
    s[f].distribute(i, grid)
    step, term = s[f].divide(k, STEPS)
    s[f].reorder(step, s[f].local(i), j, term)
    s[f].communicate(b, at=step, prefetch=prefetch)
    return s


SQUARE = {"x": (SIDE, SIDE)}
ROWS_OF_RANKS = {"x": (4, SIDE * SIDE)}
MATRICES = {"a": (ROWS, SIDE), "b": (SIDE, SIDE)}


def doubled(arrays: Arrays) -> np.ndarray:
    """What `exchange` computes."""
    return 2 * arrays["x"]


def summed(arrays: Arrays) -> np.ndarray:
    """What `all_reduce` computes."""
    return arrays["x"].sum(0)


def multiplied(arrays: Arrays) -> np.ndarray:
    """What `product` computes."""
    return arrays["a"] @ arrays["b"]


CASES = {
    "exchange-2": Case(1, SQUARE, lambda: exchange(1), doubled),
    "exchange-4": Case(2, SQUARE, lambda: exchange(2), doubled),
    "all-reduce": Case(2, ROWS_OF_RANKS, lambda: all_reduce([td.Grid(rank=4)]), summed, ring=True),
    "all-reduce-by-level": Case(2, ROWS_OF_RANKS, lambda: all_reduce(machine(2)), summed),
    "product": Case(1, MATRICES, lambda: product(0), multiplied),
    "product-prefetched": Case(1, MATRICES, lambda: product(1), multiplied),
}


def operations_per_second() -> float:
    """The operations per second of the product of one rank, without steps."""
    i, j, k = td.vars("i j k")
    a, b = td.Tensor("a", (ROWS // 2, SIDE), td.f64), td.Tensor("b", (SIDE, SIDE), td.f64)
    f = td.Func("f")
    f[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    kernel, best = td.compile(td.Schedule(f)), float("inf")
    left, right, result = np.ones((ROWS // 2, SIDE)), np.ones((SIDE, SIDE)), np.ones((ROWS // 2, SIDE))
    for _ in range(5):
        start = time.perf_counter()
        kernel(left, right, out=result)
        best = min(best, time.perf_counter() - start)
    return ROWS * SIDE * SIDE / best


def main(case: str, calls: int) -> None:
    """Time some calls, the first of which is not counted."""
    comm = td.mpi.communicator()
    p = td.compile(CASES[case].build())
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 9, shape).astype(float) for name, shape in CASES[case].inputs.items()}
    expected = CASES[case].expected(arrays)
    blocks = [p.block(name, array) for name, array in arrays.items()]
    is_right = bool(np.array_equal(p(*blocks), p.block("f", expected)))
    times = []
    for _ in range(calls):
        comm.Barrier()
        start = time.perf_counter()
        p(*blocks)
        comm.Barrier()
        times.append(1e3 * (time.perf_counter() - start))
    answer = {"ms": times, "right": all(comm.allgather(is_right)), "operations": operations_per_second()}
    if comm.rank == 0:
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

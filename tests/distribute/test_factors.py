"""Cholesky and LU factors by blocks: results of SciPy and NumPy, bytes of the closed form, on any grid."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import tdsl as td
from tdsl.placement.spans import block_cyclic
from tests.distribute.test_mpi import ROOT, needs_mpi, ranks

EXAMPLE = ROOT / "examples" / "20_factors.py"


@pytest.fixture(scope="module")
def factors() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("factors", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def planned(s: td.Schedule, a: np.ndarray, closed: tuple[int, ...]) -> np.ndarray:
    """The factors of a matrix; the bytes of each rank as planned and counted are those of the closed form."""
    p = td.compile(s, target="python")
    out, traffic = p.simulate(a, count=True)
    assert p.plan().received == traffic.received == closed
    return out


CASES = [  # the order of the matrix, the block, the grid
    (7, 3, (2, 2)),  # a prime order, and a block that does not divide it
    (5, 2, (3, 2)),
    (7, 4, (1, 6)),  # ranks along one axis only
    (4, 2, (5, 1)),  # fewer blocks than ranks
    (2, 1, (4, 2)),
    (1, 5, (2, 3)),
]


@pytest.mark.parametrize("n, block, shape", CASES)
def test_cholesky(factors: Any, n: int, block: int, shape: tuple[int, int], rng: np.random.Generator) -> None:
    grid = td.Grid(x=shape[0], y=shape[1])
    a = rng.standard_normal((n, n))
    a = a @ a.T + n * np.eye(n)
    closed = tuple(factors.received(n, block, grid, r, symmetric=True) for r in range(grid.size))
    out = planned(factors.cholesky(n, block, grid), a, closed)
    np.testing.assert_allclose(out, scipy.linalg.cholesky(a, lower=True), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n, block, shape", CASES)
def test_lu(factors: Any, n: int, block: int, shape: tuple[int, int], rng: np.random.Generator) -> None:
    grid = td.Grid(x=shape[0], y=shape[1])
    a = rng.uniform(-1, 1, (n, n))
    a += 2 * np.diag(np.abs(a).sum(0))  # dominant by columns: partial pivoting leaves the rows as they are
    closed = tuple(factors.received(n, block, grid, r, symmetric=False) for r in range(grid.size))
    out = planned(factors.lu(n, block, grid), a, closed)
    packed, pivots = scipy.linalg.lu_factor(a)
    assert list(pivots) == list(range(n))
    np.testing.assert_allclose(out, packed, rtol=1e-10, atol=1e-12)


@needs_mpi
@pytest.mark.in_part(1)
@pytest.mark.parametrize("count", [6, 2, 4, 8])
def test_factors_under_mpi(count: int) -> None:
    done = ranks(count, str(EXAMPLE))
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["Cholesky", "LU"]


def test_blocks_are_those_of_the_same_indices_in_a_func_that_begins_elsewhere() -> None:
    i = td.vars("i")
    x, g, f = td.Tensor("x", (23,), td.f64), td.Func("g"), td.Func("f", shape=(16,))
    g[i] = 2 * x[i]
    f[i] = g[i + 5] + g[i + 6]
    s, grid = td.Schedule(f), td.Grid(p=3)
    s.place(x, "i -> i/2", grid).place(g, "i -> i/2", grid).place(f, "i -> *", grid)
    s[g].distribute(onto=g)
    s[f].distribute("*", grid)
    p, a = td.compile(s, target="python"), np.arange(23.0)
    np.testing.assert_array_equal(p.simulate(a), 2 * a[5:21] + 2 * a[6:22])
    assert p.plan().moved("x") == 0
    assert p.plan().owned("g", 0) == (block_cyclic((5, 22), 2, 6, 0),)  # of the elements 5 to 21


def test_rows_of_an_update_that_reads_other_columns_are_distributed() -> None:
    i, j = td.vars("i j")
    a, u, f = td.Tensor("a", (9, 4), td.f64), td.Tensor("u", (4, 4), td.f64), td.Func("f")
    k, m = td.range("k", 0, 4), td.range("m", 0, 4)
    f[i, j] = a[i, j]
    f[i, m] = f[i, m] - td.where(k < m, f[i, k] * u[k, m], 0)
    s, grid = td.Schedule(f), td.Grid(p=4)
    s.place(a, "ij -> i", grid).place(u, "ij -> *", grid).place(f, "ij -> i", grid)[f].distribute(i, grid)
    p, rng = td.compile(s, target="python"), np.random.default_rng(0)
    left, right = rng.standard_normal((9, 4)), np.triu(rng.standard_normal((4, 4)), 1)
    expected = scipy.linalg.solve_triangular(np.eye(4) + right, left.T, trans=1).T
    np.testing.assert_allclose(p.simulate(left, right), expected)
    assert p.plan().total_received == 0

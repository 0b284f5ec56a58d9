"""`distribute(onto=...)` of block-cyclic tensors: each rank computes the blocks that it owns."""

import numpy as np
import pytest

import tdsl as td

RNG = np.random.default_rng(0)


@pytest.mark.in_part(8)
@pytest.mark.parametrize("rows, columns", [(24, 6), (23, 7), (1, 1), (5, 13), (0, 3)])
@pytest.mark.parametrize(
    "placement", ["ij -> i/3 j", "ij -> i/2 j/3", "ij -> j i/5", "ij -> i/4 *", "ij -> 1 j/2"]
)
def test_owners_compute_without_messages(rows, columns, placement):
    i, j = td.vars("i j")
    grid = td.Grid(p=2, q=3)
    x, f, g = td.Tensor("x", (rows, columns), td.f64), td.Func("f"), td.Func("g")
    f[i, j] = 2 * x[i, j]
    g[i, j] = f[i, j] + x[i, j]
    s = td.Schedule(g)
    for t in (x, f, g):
        s.place(t, placement, grid)
    s[f].distribute(onto=f)
    s[g].distribute(onto=x)
    p, a = td.compile(s), RNG.random((rows, columns))
    np.testing.assert_allclose(p.simulate(a), 3 * a)
    assert p.plan().total_received == 0


@pytest.mark.parametrize("n", [32, 31])
def test_a_product_on_block_cyclic_tiles(n):
    i, j, k = td.vars("i j k")
    grid = td.Grid(p=2, q=2)
    a, b, c = td.Tensor("a", (n, n), td.f64), td.Tensor("b", (n, n), td.f64), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c)
    s.place(a, "ik -> i/4 *", grid).place(b, "kj -> * j/4", grid).place(c, "ij -> i/4 j/4", grid)
    s[c].distribute(onto=c)
    p = td.compile(s)
    left, right = RNG.random((n, n)), RNG.random((n, n))
    np.testing.assert_allclose(p.simulate(left, right), left @ right)
    assert p.plan().total_received == 0


def test_a_func_without_a_place_is_computed_with_each_block():
    i = td.vars("i")
    grid = td.Grid(p=3)
    x, f, g = td.Tensor("x", (20,), td.f64), td.Func("f"), td.Func("g", shape=(20,))
    edges = td.pad(x, mode="edge", shape=x.shape)
    f[i] = edges[i - 1] + edges[i + 1]
    g[i] = 2 * f[i]
    s = td.Schedule(g).place(x, "i -> i/4", grid).place(g, "i -> i/4", grid)
    s[g].distribute(onto=g)
    p, a = td.compile(s), RNG.random(20)
    padded = np.pad(a, 1, mode="edge")
    np.testing.assert_allclose(p.simulate(a), 2 * (padded[:-2] + padded[2:]))
    assert p.plan().received == p.simulate(a, count=True)[1].received


def test_the_directives_print_and_replay():
    i = td.vars("i")
    x, f = td.Tensor("x", (24,), td.f64), td.Func("f")
    f[i] = 2 * x[i]
    s = td.Schedule(f).place(x, "i -> i/4", td.Grid(p=3)).place(f, "i -> i/4", td.Grid(p=3))
    s[f].distribute(onto=f)
    again = td.Schedule(f)
    exec(str(s), {"s": again, "td": td})
    assert str(again) == str(s)

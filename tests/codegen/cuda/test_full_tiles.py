"""Sums in registers of operands that are copies filled with zeros: whole tiles, no guards, at any size."""

import numpy as np
import pytest

import tdsl as td

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')

i, j, k = td.vars("i j k")


def product_in_tiles(m: int, n: int, p: int, combine=td.sum, dtype=td.f32) -> td.Schedule:
    a, b, c = td.Tensor("a", (m, p), dtype), td.Tensor("b", (p, n), dtype), td.Func("c")
    c[i, j] = combine(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c, target="cuda")
    io, jo, ii, ji = s[c].tile((i, j), (16, 16))
    ty, tx, r, q = s[c].tile((ii, ji), (2, 2))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ty, tx, ko, ki, r, q).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    s[c].bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    s.cache_write(c, at=tx, scope="register")
    for t in (a, b):
        s.cache_read(t, c, at=ko, scope="shared", filled=True).cooperate()
    s[c].unroll(ki).unroll(r).unroll(q)
    return s


def arrays(m: int, n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + p)
    return tuple(rng.integers(-5, 6, shape).astype("f4") for shape in ((m, p), (p, n)))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 16, 8), (17, 15, 9), (31, 1, 23), (33, 47, 1)])
def test_products_of_every_size_are_right(sizes):
    x, y = arrays(*sizes)
    compiled = td.compile(product_in_tiles(*sizes), target="cuda")
    np.testing.assert_array_equal(td.emulate(compiled)(x, y), x @ y)


def test_the_products_have_no_guards():
    loops = str(td.compile(product_in_tiles(31, 29, 23), target="cuda").loops("final"))
    products, stores = loops.split("for c_k_i in ")[1].split("for c_out_i in ")
    assert "if" not in products and "min(" not in products
    assert "min(" in stores


def test_a_maximum_over_terms_that_end_within_a_tile_ignores_the_zeros():
    x, y = arrays(5, 7, 11)
    x, y = -abs(x) - 1, abs(y) + 1  # all products are negative
    compiled = td.compile(product_in_tiles(5, 7, 11, td.max), target="cuda")
    expected = (x[:, :, None] * y[None]).max(axis=1)
    np.testing.assert_array_equal(td.emulate(compiled)(x, y), expected)


def test_infinite_factors_beyond_the_terms_are_not_read():
    a, b, c = td.Tensor("a", (8, 5), td.f32), td.Tensor("b", (8, 8), td.f32), td.Func("c")
    k = td.range("k", 0, 5)
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    s = td.Schedule(c, target="cuda")
    ko, ki = s[c].split(k, 8)
    io, jo, ii, ji = s[c].tile((i, j), (8, 8))
    s[c].reorder(io, jo, ii, ji, ko, ki).bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
    s.cache_write(c, at=ji, scope="register")
    for t in (a, b):
        s.cache_read(t, c, at=ko, scope="shared", filled=True).cooperate()
    y = np.full((8, 8), np.inf, "f4")
    y[:5] = 1
    got = td.emulate(td.compile(s, target="cuda"))(np.ones((8, 5), "f4"), y)
    np.testing.assert_array_equal(got, np.full((8, 8), 5, "f4"))


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("sizes", [(16, 16, 8), (17, 15, 9), (1, 3, 23), (33, 20, 16)])
def test_tiles_of_a_gather_read_no_index_beyond_the_edge(rng, sizes, stages):
    m, n, p = sizes
    at, a = td.Tensor("at", (m,), td.i32), td.Tensor("a", (50, p), td.f32)
    b, c = td.Tensor("b", (p, n), td.f32), td.Func("c")
    c[i, j] = td.sum(a[td.clip(at[i], 0, 49), k] * b[k, j], axis=k)
    s = td.Schedule(c, target="cuda")
    io, jo, ii, ji = s[c].tile((i, j), (16, 16))
    ty, tx, r, q = s[c].tile((ii, ji), (2, 2))
    ko, ki = s[c].split(k, 8)
    s[c].reorder(io, jo, ty, tx, ko, ki, r, q).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
    s[c].bind(ty, "threadIdx.y").bind(tx, "threadIdx.x")
    s.cache_write(c, at=tx, scope="register")
    s.cache_read(a, c, at=ko, scope="shared", filled=True, gathered=True).cooperate()
    s.cache_read(b, c, at=ko, scope="shared", filled=True).cooperate()
    if stages > 1:
        s[c].pipeline(ko, stages)
    rows = rng.integers(0, 50, m).astype(np.int32)
    x, y = rng.integers(-5, 6, (50, p)).astype("f4"), rng.integers(-5, 6, (p, n)).astype("f4")
    np.testing.assert_array_equal(td.emulate(td.compile(s))(rows, x, y), x[rows] @ y)

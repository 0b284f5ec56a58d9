"""Indices with operations on bits: butterflies exchange blocks in pairs; what has no bounds is refused."""

import numpy as np
import pytest

import tdsl as td

N, GRID = 64, td.Grid(p=8)
A = np.arange(N) * 1.5


def on_ranks(index, *, of=td.i64):
    """f[i] = x[index(i)] on eight ranks, and the tensor q of numbers that an index may read."""
    i = td.vars("i")
    x, q, f = td.Tensor("x", (N,), td.f64), td.Tensor("q", (N,), of), td.Func("f")
    f[i] = x[index(i, q)] + 0 * q[i]
    s = td.Schedule(f).place(x, "i -> i", GRID).place(q, "i -> i", GRID).place(f, "i -> i", GRID)
    s[f].distribute(onto=f)
    return td.compile(s)


@pytest.mark.parametrize("h", [1, 4, 8, 16, 32])
def test_a_butterfly_receives_the_block_of_its_partner_alone(h):
    p = on_ranks(lambda i, q: i ^ h)
    np.testing.assert_array_equal(p.simulate(A, np.arange(N)), A[np.arange(N) ^ h])
    assert set(p.plan().received) == {0 if h < 8 else 64}
    assert set(p.plan().messages) == {0 if h < 8 else 1}


@pytest.mark.parametrize(
    "index",
    [
        lambda i: i | 8,
        lambda i: i & ~8,
        lambda i: (i << 1) >> 1,
        lambda i: ~i + 64,
        lambda i: (i & 1) << 5 | i >> 1,
    ],
)
def test_other_operations_on_bits(index):
    p = on_ranks(lambda i, q: index(i))
    np.testing.assert_array_equal(p.simulate(A, np.arange(N)), A[index(np.arange(N))])


def test_an_index_without_bounds_is_refused_at_the_access():
    p = on_ranks(lambda i, q: q[i])
    with pytest.raises(td.IndexBoundError, match=r"the index q\[i\] of 'x' has no bounds") as error:
        p.plan()
    assert "td.clip(index, 0, n - 1)" in str(error.value)
    p = on_ranks(lambda i, q: td.clip(q[i], 0, N - 1))
    q = np.random.default_rng(0).integers(0, N, N)
    np.testing.assert_array_equal(p.simulate(A, q), A[q])

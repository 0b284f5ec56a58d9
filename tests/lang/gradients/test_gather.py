"""Sums of adjoints in the loop variables of what is differentiated: products stay products of matrices."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.build_program import build_program

t, s, h, e, n = td.vars("t s h e n")


def attention_scores(heads, width):
    """Scores of queries and keys that are columns of one array, and the adjoint of that array."""
    z = td.Tensor("z", (6, 2 * heads * width), td.f64)
    score = td.Func("score", shape=(heads, 6, 6))
    k = td.range("k", 0, width)
    score[h, t, s] = td.sum(z[t, h * width + k] * z[s, heads * width + h * width + k], axis=k)
    return score, td.vjp(score, z, td.Tensor("dy", (heads, 6, 6), td.f64))


@pytest.mark.parametrize("heads, width", [(1, 4), (2, 4), (3, 5), (4, 1), (2, 2)])
@pytest.mark.parametrize("target", ["cpu", "python"])
def test_the_adjoint_of_heads_in_columns(rng, heads, width, target):
    _, dz = attention_scores(heads, width)
    z, dy = rng.standard_normal((6, 2 * heads * width)), rng.standard_normal((heads, 6, 6))
    q, k = z.reshape(6, 2, heads, width).transpose(1, 2, 0, 3)
    expected = np.stack([dy @ k, dy.transpose(0, 2, 1) @ q]).transpose(2, 0, 1, 3).reshape(z.shape)
    np.testing.assert_allclose(td.compile(dz, target=target)(z=z, dy=dy), expected)


def test_no_quotient_and_no_guard_is_in_a_sum():
    _, dz = attention_scores(2, 4)
    *sums, whole = build_program((dz,)).funcs
    assert [f.variables for f in sums] == [("t", "h", "k"), ("s", "h", "k")]
    for f in sums:
        text = str(f.definitions[0].values)
        assert "floordiv" not in text
        assert "Select" not in text
    assert not whole.definitions[0].ranges


@pytest.mark.parametrize("rows, step", [("M", 2), (7, 2), (7, 3), (1, 2)])
def test_sums_of_rows_that_are_read_at_a_stride(rng, rows, step):
    """Rows that are not read have the adjoint 0; their sums are not computed."""
    x, w = td.Tensor("x", ("M" if rows == "M" else step * rows, 5), td.f64), td.Tensor("w", (5, 3), td.f64)
    y = td.Func("y", shape=(x.shape[0] // step, 3))
    y[t, n] = td.sum(x[t * step, s] * w[s, n], axis=s)
    m = 4 if rows == "M" else rows
    dx = td.vjp(y, x, td.Tensor("dy", (x.shape[0] // step, 3), td.f64))
    v, dy = rng.standard_normal((step * m, 5)), rng.standard_normal((m, 3))
    weights = rng.standard_normal((5, 3))
    expected = np.zeros_like(v)
    expected[::step] = dy @ weights.T
    f = td.compile(td.Schedule(dx, sizes={"M": step * m} if rows == "M" else {}))
    np.testing.assert_allclose(f(w=weights, dy=dy), expected)


@pytest.mark.parametrize("shift", [0, 3, 4])
@pytest.mark.parametrize("wrap", [True, False])
def test_tiles_of_a_picture_that_are_numbered_in_one_index(rng, shift, wrap):
    """The tile and the point in it are digits of the two axes: each digit has its own range."""
    tile, rows, columns = 3, 2, 3
    x = td.Tensor("x", (tile * rows + shift, tile * columns + shift), td.f64)
    tiles, (b, p) = td.Func("tiles", shape=(rows * columns, tile * tile)), td.vars("b p")
    at = b // columns * tile + p // tile + shift, b % columns * tile + p % tile + shift
    if wrap:
        at = at[0] % x.shape[0], at[1] % x.shape[1]
    tiles[b, p] = x[at]
    dx = td.vjp(tiles, x, td.Tensor("dy", (rows * columns, tile * tile), td.f64))
    assert len(build_program((dx,)).func("d_x").definitions) == 1
    dy = rng.standard_normal((rows * columns, tile * tile))
    expected = np.zeros((tile * rows + shift, tile * columns + shift))
    parts = dy.reshape(rows, columns, tile, tile).transpose(0, 2, 1, 3)
    expected[shift:, shift:] = parts.reshape(tile * rows, tile * columns)
    np.testing.assert_allclose(td.compile(dx)(dy=dy), expected)

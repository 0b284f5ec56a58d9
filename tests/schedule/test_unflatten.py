"""A variable as quotient and remainder: the meaning stays, and what cannot be done is refused."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError

t, s_, d = td.vars("t s d")


def heads(columns=8, width=4):
    """Columns of values weighted by what their head gives each row, twice."""
    p = td.Tensor("p", (columns // width, 6, 6), td.f64)
    v = td.Tensor("v", (6, columns), td.f64)
    y, z = td.Func("y", shape=(6, columns)), td.Func("z")
    y[t, d] = td.sum(p[d // width, t, s_] * v[s_, d], axis=s_)
    z[t, d] = y[t, d] * 2 + y[5 - t, columns - 1 - d]
    return p, v, y, z


def arrays(rng, columns=8, width=4):
    return rng.standard_normal((columns // width, 6, 6)), rng.standard_normal((6, columns))


@pytest.mark.parametrize("target", ["cpu", "python"])
@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_readers_find_quotient_and_remainder(rng, target, factor):
    _, _, y, z = heads()
    s = td.Schedule(z)
    outer, inner = s[y].unflatten(d, factor)
    s[y].reorder(outer, t, inner)
    p, v = arrays(rng)
    by_heads = np.einsum("hts,she->the", p, v.reshape(6, 2, 4)).reshape(6, 8)
    np.testing.assert_allclose(td.compile(s, target=target)(p, v), 2 * by_heads + by_heads[::-1, ::-1])


def test_flatten_is_the_way_back(rng):
    _, _, y, z = heads()
    s = td.Schedule(z)
    s[y].flatten(*s[y].unflatten(d, 4))
    p, v = arrays(rng)
    np.testing.assert_allclose(td.compile(s)(p, v), td.compile(td.Schedule(z))(p, v))


@pytest.mark.parametrize(
    "use, wrong",
    [
        (lambda s, y, z: s[y].unflatten(d, 3), "no multiple of 3"),
        (lambda s, y, z: s[y].unflatten(s_, 2), "no free variable"),
        (lambda s, y, z: s[z].unflatten(d, 4), "is an output"),
        (lambda s, y, z: (s[y].split(t, 2), s[y].unflatten(d, 4)), "changed already"),
        (lambda s, y, z: s[y].unflatten(d, 0), "factor"),
    ],
)
def test_what_cannot_be_unflattened_is_refused(use, wrong):
    _, _, y, z = heads()
    with pytest.raises(ScheduleError, match=wrong):
        use(td.Schedule(z), y, z)


@pytest.mark.parametrize("output", [False, True])
@pytest.mark.parametrize("columns, width", [(64, 16), (96, 32), (12, 4), (10, 5), (6, 3)])
def test_heads_in_columns_are_products_by_default(rng, output, columns, width):
    _, _, y, z = heads(columns, width)
    p, v = arrays(rng, columns, width)
    f = td.compile(y if output else z)
    by_heads = np.einsum("hts,she->the", p, v.reshape(6, -1, width)).reshape(6, columns)
    np.testing.assert_allclose(f(p, v), by_heads if output else 2 * by_heads + by_heads[::-1, ::-1])


def test_the_default_has_vectors_of_a_head():
    p, v = td.Tensor("p", (4, 64, 64), td.f32), td.Tensor("v", (64, 128), td.f32)
    y = td.Func("y", shape=(64, 128))
    y[t, d] = td.sum(p[d // 32, t, s_] * v[s_, d], axis=s_)
    assert "d_i_v (vectorized)" in str(td.compile(y).explain())

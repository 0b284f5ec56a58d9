"""Chains that end in a sum go by bands, too; rows that threads cannot share do not."""

import numpy as np
import pytest

import tdsl as td
from tdsl.errors import ScheduleError
from tdsl.machine.model import Machine

h, i, j, k, e = td.vars("h i j k e")
WIDE = Machine(vector_bytes=64, threads=2)


def two_products(heads="H", rows="M", inner="K", length="L", columns="N"):
    a, b, d = (
        td.Tensor(n, (heads, s, t), td.f32)
        for n, s, t in (("a", rows, inner), ("b", inner, length), ("d", length, columns))
    )
    first, out = td.Func("first"), td.Func("out")
    first[h, i, j] = td.sum(a[h, i, k] * b[h, k, j], axis=k)
    out[h, i, e] = td.sum(first[h, i, j] * d[h, j, e], axis=j)
    return out


def weighted():
    """Weights that are divided before they are summed with."""
    q, key, v = (td.Tensor(n, (1, 300, 16), td.f32) for n in ("q", "key", "v"))
    p, total, part, out = (td.Func(n) for n in ("p", "total", "part", "out"))
    p[h, i, j] = td.exp(td.sum(q[h, i, k] * key[h, j, k], axis=k))
    total[h, i] = td.sum(p[h, i, j], axis=j)
    part[h, i, j] = p[h, i, j] / total[h, i]
    out[h, i, e] = td.sum(part[h, i, j] * v[h, j, e], axis=j)
    return out


@pytest.mark.parametrize(
    "shape", [(2, 33, 16, 40, 24), (1, 64, 49, 50, 49), (3, 5, 7, 8, 9), (1, 16, 1, 1, 1)]
)
def test_two_products(rng, shape):
    heads, m, inner, length, n = shape
    a, b, d = (rng.standard_normal(s, dtype=np.float32)
               for s in ((heads, m, inner), (heads, inner, length), (heads, length, n)))  # fmt: skip
    result = td.compile(two_products())(a, b, d)
    np.testing.assert_allclose(result, a @ b @ d, rtol=1e-3, atol=1e-4)


def test_a_sum_keeps_what_it_reads_by_bands(rng):
    s = td.Schedule(two_products(1, 256, 64, 512, 64))
    plan = td.recipes.bands(s["out"], machine=WIDE)
    assert (plan.row, plan.parallel) == ("i", "i")
    assert plan.rows <= 128
    a, b, d = (rng.standard_normal(x, dtype=np.float32) for x in ((1, 256, 64), (1, 64, 512), (1, 512, 64)))
    np.testing.assert_allclose(td.compile(s)(a, b, d), a @ b @ d, rtol=1e-3, atol=1e-3)


def test_rows_too_few_for_all_threads_make_no_bands():
    s = td.Schedule(two_products(1, 8, 64, 512, 64))
    with pytest.raises(ScheduleError, match="chain with a product"):
        td.recipes.bands(s["out"], machine=WIDE)


def test_weights_divided_before_the_sum(rng):
    q, key, v = (rng.standard_normal((1, 300, 16), dtype=np.float32) / 4 for _ in range(3))
    p = np.exp(q @ key.transpose(0, 2, 1).astype(np.float64))
    want = p / p.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(td.compile(weighted())(q=q, key=key, v=v), want, rtol=1e-4, atol=1e-5)

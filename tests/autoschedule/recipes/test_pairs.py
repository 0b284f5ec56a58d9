"""The recipe for reductions over pairs: what NumPy gives, at any size and for other layouts."""

import numpy as np
import pytest

import tdsl as td
from tdsl.machine.model import Machine

p, q, d = td.vars("p q d")
WIDE = Machine(vector_bytes=64, threads=2, registers=32)
SHAPES = [(0, 3, 2), (1, 1, 1), (5, 7, 3), (16, 16, 8), (33, 17, 9), (70, 40, 33), (131, 5, 64)]


def nearest(dtype=td.f32, turned=False, farthest=False):
    a = td.Tensor("a", ("D", "P") if turned else ("P", "D"), dtype)
    b = td.Tensor("b", ("Q", "D"), dtype)
    distance, best = td.Func("distance"), td.Func("best")
    point = a[d, p] if turned else a[p, d]
    distance[p, q] = td.sum((point - b[q, d]) ** 2, axis=d)
    best[p] = (td.argmax if farthest else td.argmin)(distance[p, q], axis=q)
    return best


def by_numpy(a, b, farthest=False):
    distance = ((a[:, None].astype(np.float64) - b[None]) ** 2).sum(-1)
    return distance.argmax(1) if farthest else distance.argmin(1)


def whole(rng, *shape, dtype=np.float32):
    """Small whole numbers, so that distances are exact and often equal."""
    return rng.integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_default_schedule_at_any_size(rng, shape):
    points, partners, dims = shape
    a, b = whole(rng, points, dims), whole(rng, partners, dims)
    np.testing.assert_array_equal(td.compile(nearest())(a, b), by_numpy(a, b))


@pytest.mark.parametrize("farthest", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [td.f32, td.f64], ids=str)
def test_layouts_and_types(rng, dtype, turned, farthest):
    a, b = whole(rng, 50, 21, dtype=dtype.numpy), whole(rng, 19, 21, dtype=dtype.numpy)
    s = td.Schedule(nearest(dtype, turned, farthest))
    assert td.recipes.pairs(s["best"], machine=WIDE) is not None
    given = np.ascontiguousarray(a.T) if turned else a
    np.testing.assert_array_equal(td.compile(s)(given, b), by_numpy(a, b, farthest))


@pytest.mark.parametrize("rows, partners", [(16, 3), (32, 6), (48, 16), (5, 4)])
def test_any_choice(rng, rows, partners):
    a, b = whole(rng, 83, 10), whole(rng, 29, 10)
    s = td.Schedule(nearest())
    td.recipes.pairs(s["best"], machine=WIDE, rows=rows, partners=partners)
    np.testing.assert_array_equal(td.compile(s)(a, b), by_numpy(a, b))


def test_the_first_nan_is_the_least(rng):
    a, b = whole(rng, 40, 6), whole(rng, 20, 6)
    b[7, 2] = b[9, 0] = np.nan
    np.testing.assert_array_equal(td.compile(nearest())(a, b), np.full(40, 7))


def test_other_stages_are_left_as_they_are():
    a = td.Tensor("a", ("P", "Q", "D"), td.f32)
    distance, best = td.Func("distance"), td.Func("best")
    distance[p, q] = td.sum(a[p, q, d] ** 2, axis=d)
    best[p] = td.argmin(distance[p, q], axis=q)
    s = td.Schedule(best)
    with pytest.raises(td.ScheduleError, match="pairs is not for"):
        td.recipes.pairs(s[best], machine=WIDE)
    assert not s.directives

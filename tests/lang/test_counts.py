"""A count of points beside a reduction becomes a number where that is known, and only there."""

from typing import Any

import numpy as np
import pytest

import tdsl as td
from tests.lang.meaning import counted, run

i, j, k = td.vars("i j k")


def twice(a: np.ndarray) -> td.Func:
    """A func whose extents follow from what it reads."""
    t, f = td.Tensor("a", ("R", "C"), a.dtype), td.Func("twice")
    f[i, j] = t[i, j] * 2
    return f


def components(f: td.Func) -> dict[str, int]:
    return {g.name: len(g.dtypes) for g in td.Schedule(f).program.funcs}


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 130), (2, 0)])
@pytest.mark.parametrize("axes", ["rows", "columns", "both"])
def test_a_mean_of_a_func_is_a_sum_over_a_number(shape: Any, axes: str) -> None:
    a = counted(*shape)
    f, m = twice(a), td.Func("m")
    match axes:
        case "rows":
            m[i] = td.mean(f[i, k], axis=k)
        case "columns":
            m[j] = td.mean(f[k, j], axis=k)
        case "both":
            m[()] = td.mean(f[i, k], axis=(i, k))
    assert set(components(m).values()) == {1}
    axis = {"rows": 1, "columns": 0, "both": None}[axes]
    if a.size:
        expected = (2.0 * a).mean(axis)
        np.testing.assert_allclose(run(m, a=a), expected, rtol=1e-6)
        np.testing.assert_allclose(td.compile(m)(a), expected, rtol=1e-6)
    elif axes == "rows":
        assert np.isnan(run(m, a=a)).all()


def test_points_under_a_predicate_are_counted_one_by_one() -> None:
    a = counted(3, 6)
    f, m = twice(a), td.Func("m")
    m[i] = td.mean(f[i, td.range("k", 0, 6)], axis=td.range("k", 0, 6, where=lambda k: k % 2 == 0))
    assert max(components(m).values()) == 2
    np.testing.assert_allclose(run(m, a=a), 2 * a[:, ::2].mean(1), rtol=1e-6)


def test_a_range_that_depends_on_the_point_is_counted() -> None:
    a = counted(5, 5)
    f, m = twice(a), td.Func("m")
    below = td.range("k", 0, i + 1)
    m[i] = td.mean(f[i, below], axis=below)
    expected = [2.0 * a[n, : n + 1].mean() for n in range(5)]
    np.testing.assert_allclose(run(m, a=a), expected, rtol=1e-6)
    np.testing.assert_allclose(td.compile(m)(a), expected, rtol=1e-6)


def test_a_range_whose_end_data_gives_is_counted() -> None:
    a, ends = counted(4, 6), np.array([1, 6, 3, 2])
    f, m, n = twice(a), td.Func("m"), td.Tensor("n", (4,), td.i64)
    upto = td.range("k", 0, td.clip(n[i], 0, 6))
    m[i] = td.mean(f[i, upto], axis=upto)
    expected = [2.0 * a[r, :e].mean() for r, e in enumerate(ends)]
    np.testing.assert_allclose(run(m, a=a, n=ends), expected, rtol=1e-6)


def test_a_count_may_be_any_component() -> None:
    a = counted(4, 6)
    f, m = twice(a), td.Func("m")

    def merge(x: Any, y: Any) -> tuple[Any, ...]:
        return x[0] + y[0], td.maximum(x[1], y[1]), x[2] + y[2]

    one = td.cast(1, td.i8)
    n, most, total = td.reduce(merge, (0, -1e9, 0.0), (one, f[i, k], f[i, k]), axis=k)
    m[i] = most - total / n
    assert max(components(m).values()) == 2
    np.testing.assert_allclose(run(m, a=a), 2.0 * (a.max(1) - a.mean(1)), rtol=1e-6)


def test_a_count_that_another_component_uses_stays() -> None:
    a = counted(3, 8)
    f, m = twice(a), td.Func("m")

    def merge(x: Any, y: Any) -> tuple[Any, ...]:
        n = x[0] + y[0]
        mean = x[1] + (y[1] - x[1]) * td.cast(y[0], td.f32) / td.cast(td.maximum(n, 1), td.f32)
        return n, mean

    m[i] = td.reduce(merge, (0, 0.0), (1, f[i, k]), axis=k)[1]
    assert max(components(m).values()) == 2
    np.testing.assert_allclose(run(m, a=a), 2 * a.mean(1), rtol=1e-5, atol=1e-6)


def test_a_result_keeps_its_components() -> None:
    a = counted(3, 8)
    f, m = twice(a), td.Func("m")
    m[i] = td.reduce(lambda x, y: (x[0] + y[0], x[1] + y[1]), (0.0, 0), (f[i, k], 1), axis=k)
    total, count = run(m, a=a)
    np.testing.assert_allclose(total, 2 * a.sum(1))
    np.testing.assert_array_equal(count, [8] * 3)

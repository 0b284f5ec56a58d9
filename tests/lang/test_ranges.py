"""Ranges whose bounds depend on other variables."""

import numpy as np
import pytest

import tdsl as td

I, K = td.vars("i k")
VALUES = np.float32([1, 2, 4, 8])


def one() -> td.Tensor:
    return td.Tensor("a", ("N",), td.f32)


@pytest.mark.parametrize("shape", ["N", 4])
def test_a_bound_by_a_free_variable_of_a_declared_shape(shape: object) -> None:
    a, f, r = one(), td.Func("f", shape=shape), td.range("r", 0, I + 1)
    f[I] = td.sum(a[r], axis=r)
    np.testing.assert_array_equal(td.compile(f)(VALUES), VALUES.cumsum())


def test_a_bound_by_a_free_variable_whose_range_is_that_of_a_tensor() -> None:
    a, f = one(), td.Func("f")
    r = td.range("r", I, a.shape[0])
    f[I] = a[I] * 0
    f[I] += a[r]
    np.testing.assert_array_equal(td.compile(f)(VALUES), VALUES[::-1].cumsum()[::-1])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_bound_by_a_variable_whose_range_is_inferred(order: tuple[int, int]) -> None:
    a, f = one(), td.Func("f")
    both = K, td.range("r", K, a.shape[0])
    f[()] = td.sum(a[K] * a[both[1]], axis=[both[n] for n in order])
    assert td.compile(f)(VALUES) == np.triu(np.outer(VALUES, VALUES)).sum()


def test_a_bound_beyond_the_tensor_is_an_error() -> None:
    a, f, r = one(), td.Func("f", shape="N"), td.range("r", 0, I + 2)
    f[I] = td.sum(a[r], axis=r)
    with pytest.raises(td.IndexBoundError, match="a"):
        td.compile(f)(VALUES)


def test_a_bound_by_a_variable_without_a_range_is_refused() -> None:
    a, f, r = one(), td.Func("f"), td.range("r", 0, I + 1)
    f[I] = td.sum(a[r], axis=r)
    with pytest.raises(td.ShapeError, match="depends on a variable") as error:
        f.shape
    assert "where=" in error.value.hint


@pytest.mark.parametrize("target", ["cpu", "python"])
def test_bounds_that_are_data(target: str) -> None:
    rows = 5
    start = np.int32([0, 2, 2, 3, 7, 8])
    values, columns = np.arange(1, 9, dtype=np.float32), np.int32([0, 1, 4, 0, 1, 2, 3, 2])
    dense = np.zeros((rows, 6), np.float32)
    dense[np.repeat(np.arange(rows), np.diff(start)), columns] = values
    v, c = td.Tensor("v", ("Z",), td.f32), td.Tensor("c", ("Z",), td.i32)
    s, x = td.Tensor("s", ("S",), td.i32), td.Tensor("x", ("N",), td.f32)
    ends = [td.clip(s[I + n], 0, v.shape[0]) for n in range(2)]
    r = td.range("r", *ends)
    f = td.Func("f", shape=s.shape[0] - 1)
    f[I] = td.sum(v[r] * x[td.clip(c[r], 0, x.shape[0] - 1)], axis=r)
    other = np.arange(6, dtype=np.float32)
    result = td.compile(f, target=target)(v=values, c=columns, s=start, x=other)
    np.testing.assert_array_equal(result, dense @ other)


@pytest.mark.parametrize("target", ["cpu", "python"])
@pytest.mark.parametrize("ends", [(2, 5), (5, 2), (-4, 30), (9, 9)])
def test_bounds_that_are_data_alone(target: str, ends: tuple[int, int]) -> None:
    """No variable is in them: the range is still that of the data, not all that they may be."""
    i = td.vars("i")
    end, x = td.Tensor("end", (2,), td.i32), td.Tensor("x", (9,), td.i32)
    r = td.range("r", td.clip(end[0], 0, 9), td.clip(end[1], 0, 9))
    f, total = td.Func("f", shape=(9,)), td.Func("total")
    f[i] = 0
    f[r] = r + 1
    total[()] = td.sum(x[r], axis=r)
    data = {"end": np.array(ends, np.int32), "x": np.arange(9, dtype=np.int32) ** 2}
    inside = [n for n in range(9) if ends[0] <= n < ends[1]]
    want = np.zeros(9, np.int64)
    want[inside] = np.array(inside, np.int64) + 1
    np.testing.assert_array_equal(td.compile(f, target=target)(data["end"]), want)
    assert td.compile(total, target=target)(**data) == sum(n * n for n in inside)

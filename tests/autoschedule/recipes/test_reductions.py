"""Reductions and scans of every shape under the default schedule: odd sizes, NaN and infinities."""

import numpy as np
import pytest

import tdsl as td

i, j, k = td.vars("i j k")
LOWEST = float(np.finfo(np.float32).min)
SHAPES = [(1, 1), (3, 7), (5, 64), (13, 131), (300, 517)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def matrix(dtype=td.f32):
    return td.Tensor("x", ("R", "C"), dtype)


def running_softmax(a, b):
    """The largest so far, and the sum of e^(x - largest)."""
    top = td.maximum(a[0], b[0])
    less = td.exp(td.minimum(a[0], b[0]) - top)
    return top, td.where(a[0] < b[0], a[1] * less + b[1], a[1] + b[1] * less)


def state_of_rows(x):
    state = td.Func("state")
    one = td.cast(1.0, td.f32)
    state[i] = td.reduce(running_softmax, (LOWEST, 0.0), (x[i, k], one), axis=k)
    return state


def online_softmax():
    x, y = matrix(), td.Func("y")
    state = state_of_rows(x)
    y[i, j] = td.exp(x[i, j] - state[i][0]) / state[i][1]
    return y


def log_sum_exp():
    x, y = matrix(), td.Func("y")
    top, total = td.Func("top"), td.Func("total")
    top[i] = td.max(x[i, k], axis=k)
    total[i] = td.sum(td.exp(x[i, k] - top[i]), axis=k)
    y[i] = top[i] + td.log(total[i])
    return y


def online_log_sum_exp():
    y, state = td.Func("y"), state_of_rows(matrix())
    y[i] = state[i][0] + td.log(state[i][1])
    return y


def numpy_softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def numpy_log_sum_exp(x):
    top = x.max(1)
    return top + np.log(np.exp(x - top[:, None]).sum(1))


CHAINS = {
    online_softmax: numpy_softmax,
    log_sum_exp: numpy_log_sum_exp,
    online_log_sum_exp: numpy_log_sum_exp,
}


@shapes
@pytest.mark.parametrize("program", CHAINS, ids=lambda f: f.__name__)
def test_largest_and_sum_of_a_row_in_one_pass_or_two(rng, program, shape):
    x = 10 * rng.standard_normal(shape, dtype=np.float32)
    exact = CHAINS[program](x.astype(np.float64))
    np.testing.assert_allclose(td.compile(program())(x), exact, 1e-5, 1e-6)


@pytest.mark.parametrize("program", CHAINS, ids=lambda f: f.__name__)
def test_a_nan_stays_in_its_row_and_what_is_far_below_counts_nothing(rng, program):
    x = rng.standard_normal((4, 133), dtype=np.float32)
    x[0, 70], x[1, 3], x[2, :] = np.nan, -np.inf, -1e30
    got = td.compile(program())(x)
    exact = CHAINS[program](x.astype(np.float64))
    np.testing.assert_allclose(got, exact, 1e-5, 1e-6)


def arg(kind, axis, dtype):
    x, f = matrix(dtype), td.Func("f")
    if axis:
        f[i] = getattr(td, kind)(x[i, k], axis=k)
    else:
        f[j] = getattr(td, kind)(x[k, j], axis=k)
    return f


@shapes
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_argmax_is_the_first_of_equal_values(rng, shape, kind, axis, dtype):
    x = rng.integers(-4, 5, shape).astype(dtype)  # with many ties
    got = td.compile(arg(kind, axis, x.dtype))(x)
    np.testing.assert_array_equal(got, getattr(np, kind)(x, axis))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_first_nan_is_the_largest_and_the_smallest(rng, kind, axis):
    x = rng.standard_normal((150, 139), dtype=np.float32)
    x[3, [2, 90]], x[[7, 140], 5], x[9], x[:, 11] = np.nan, np.nan, -np.inf, np.inf
    np.testing.assert_array_equal(td.compile(arg(kind, axis, td.f32))(x), getattr(np, kind)(x, axis))


def top(count):
    """The largest `count` values of each row and where they are, by a network that merges sorted lists."""
    x, f = matrix(), td.Func("f")

    def better(p, q):
        return (p[0] > q[0]) | ((p[0] == q[0]) & (p[1] < q[1]))

    def ordered(p, q):
        first = better(p, q)
        return tuple(td.where(first, u, v) for u, v in zip(p, q, strict=True)), tuple(
            td.where(first, v, u) for u, v in zip(p, q, strict=True)
        )

    def merge(a, b):
        left, right = (list(zip(s[:count], s[count:], strict=True)) for s in (a, b))
        best = [ordered(p, q)[0] for p, q in zip(left, reversed(right), strict=True)]
        step = count // 2
        while step:
            for n in range(count):
                if not n & step:
                    best[n], best[n + step] = ordered(best[n], best[n + step])
            step //= 2
        return (*(p[0] for p in best), *(p[1] for p in best))

    nothing, nowhere = [-np.inf] * (count - 1), [2**62] * (count - 1)
    values = (x[i, k], *(td.cast(n, td.f32) for n in nothing), td.cast(k, td.i64), *nowhere)
    f[i] = td.reduce(merge, (*nothing, -np.inf, *nowhere, 2**62), values, axis=k)
    return f


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("shape", [(3, 7), (5, 64), (13, 131), (40, 517)], ids=str)
def test_the_largest_few_of_a_row(rng, count, shape):
    x = rng.integers(-40, 40, shape).astype(np.float32)
    got = td.compile(top(count))(x)
    where = np.argsort(-x, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(np.stack(got[count:], 1), where)
    np.testing.assert_array_equal(np.stack(got[:count], 1), np.take_along_axis(x, where, 1))


def running_sums(axis, dtype):
    x, f = matrix(dtype), td.Func("f")
    r = td.range("r", 1, x.shape[axis])
    f[i, j] = x[i, j]
    if axis:
        f[i, r] += f[i, r - 1]
    else:
        f[r, j] += f[r - 1, j]
    return f


@shapes
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_running_sums_along_each_axis(rng, shape, axis, dtype):
    x = rng.integers(-9, 9, shape).astype(dtype)
    np.testing.assert_array_equal(td.compile(running_sums(axis, x.dtype))(x), x.cumsum(axis))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_nan_spreads_to_all_later_sums(rng, axis):
    x = rng.standard_normal((21, 35), dtype=np.float32)
    x[4, 7], x[11, 2], x[12, 3] = np.nan, np.inf, -np.inf
    got = td.compile(running_sums(axis, td.f32))(x)
    np.testing.assert_allclose(got, x.cumsum(axis, dtype=np.float32), 1e-4, 1e-5)


def of_columns(kind):
    x, f = matrix(), td.Func("f")
    mean = td.Func("mean")
    mean[j] = td.mean(x[k, j], axis=k)
    match kind:
        case "sum":
            f[j] = td.sum(x[k, j], axis=k)
        case "mean":
            return mean
        case "normal":
            f[i, j] = x[i, j] - mean[j]
        case "softmax":
            most, e, total = td.Func("most"), td.Func("e"), td.Func("total")
            most[j] = td.max(x[k, j], axis=k)
            e[i, j] = td.exp(x[i, j] - most[j])
            total[j] = td.sum(e[k, j], axis=k)
            f[i, j] = e[i, j] / total[j]
    return f


def numpy_of_columns(kind, x):
    match kind:
        case "sum":
            return x.sum(0)
        case "mean":
            return x.mean(0)
        case "normal":
            return x - x.mean(0)
    return numpy_softmax(x.T).T


@shapes
@pytest.mark.parametrize("kind", ["sum", "mean", "normal", "softmax"])
def test_columns_are_reduced_row_by_row(rng, shape, kind):
    x = rng.standard_normal(shape, dtype=np.float32)
    x[shape[0] // 2, shape[1] // 2] = np.inf if kind == "sum" else 5
    with np.errstate(invalid="ignore"):
        exact = numpy_of_columns(kind, x.astype(np.float64))
    np.testing.assert_allclose(td.compile(of_columns(kind))(x), exact, 1e-5, 1e-4)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_nothing_is_reduced_to_the_start(shape):
    x = np.zeros(shape, np.float32)
    for program in (online_softmax, online_log_sum_exp):
        assert td.compile(program())(x).shape == (shape if program is online_softmax else shape[:1])
    for axis in (0, 1):
        np.testing.assert_array_equal(td.compile(running_sums(axis, td.f32))(x), x)
    np.testing.assert_array_equal(td.compile(of_columns("sum"))(x), x.sum(0))
    values = td.compile(top(2))(x)
    assert [v.shape for v in values] == [shape[:1]] * 4
    assert all((v == -np.inf).all() for v in values[:2])
    if shape[1]:
        assert td.compile(arg("argmax", 1, td.f32))(x).shape == shape[:1]

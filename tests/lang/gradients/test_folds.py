"""Gradients of reductions by combiners of the user, against differences and against closed forms."""

import numpy as np
import pytest

import tdsl as td
from tests.lang.gradients.test_vjp import check, uniform

i, k, m = td.vars("i k m")


def logaddexp(a, b):
    high = td.maximum(a, b)
    return high + td.log(td.exp(a - high) + td.exp(b - high))


def online(a, b):
    """A maximum, and the sum of exponentials less it."""
    high = td.maximum(a[0], b[0])
    return high, a[1] * td.exp(a[0] - high) + b[1] * td.exp(b[0] - high)


def welford(a, b):
    """A count, a mean, and the sum of squared differences from it (Chan, Golub, LeVeque 1979)."""
    n, d = a[0] + b[0], b[1] - a[1]
    share = td.where(n > 0, b[0] / td.maximum(n, 1.0), 0.0)
    return n, a[1] + d * share, a[2] + b[2] + d * d * a[0] * share


def times(a, b):
    """The product of two complex numbers."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def rows(form):
    """The func of a reduction of rows of x by each combiner."""
    x, f = td.Tensor("x", (3, 5), td.f64), td.Func("f")
    v = x[i, k]
    match form:
        case "logaddexp":
            f[i] = td.reduce(logaddexp, -1e300, v, k)
        case "product":
            f[i] = td.reduce(lambda a, b: a * b, 1.0, td.sin(v), k)
        case "maximum":
            f[i] = td.reduce(td.maximum, -1e300, v * v, k)
        case "online":
            high, total = td.reduce(online, (-1e300, 0.0), (v, 1.0), k)
            f[i] = high + td.log(total)
        case "weighted":
            high, total = td.reduce(online, (-1e300, 0.0), (v, v * v + 1), k)
            f[i] = 0.3 * high + td.log(total)
        case "welford":
            count, mean, squares = td.reduce(welford, (0.0, 0.0, 0.0), (1.0, td.exp(v), 0.0), k)
            f[i] = squares / count + mean * 0.5
        case "complex":
            real, imaginary = td.reduce(times, (1.0, 0.0), (v, v * v + 1), k)
            f[i] = real - 2 * imaginary * real
    return f, x


@pytest.mark.parametrize(
    "form", ["logaddexp", "product", "maximum", "online", "weighted", "welford", "complex"]
)
def test_combiners_of_one_and_of_several_values(form):
    f, x = rows(form)
    check(f, [x], x=uniform(3, 5))


@pytest.mark.parametrize("extents", [(2, 3), (1, 1)])
@pytest.mark.parametrize("combiner", ["online", "complex"])
def test_several_axes(extents, combiner):
    x, f = td.Tensor("x", (2, *extents), td.f64), td.Func("f")
    v = x[i, k, m]
    if combiner == "online":
        high, total = td.reduce(online, (-1e300, 0.0), (v, 1.0), (k, m))
        f[i] = high + td.log(total)
    else:
        real, imaginary = td.reduce(times, (1.0, 0.0), (v, v * v + 1), (k, m))
        f[i] = real - 2 * imaginary * real
    check(f, [x], x=uniform(2, *extents))


def test_ranges_that_are_part_of_an_axis_or_depend_on_another_variable():
    x, g, f = td.Tensor("x", (7,), td.f64), td.Func("g", shape=(4,)), td.Func("f")
    part, below = td.range("part", 2, 6), td.range("below", 0, i + 2)
    high, total = td.reduce(online, (-1e300, 0.0), (x[part], 1.0), part)
    g[i] = td.reduce(logaddexp, -1e300, x[below] * 2, below)
    f[i] = (high + td.log(total)) * (i + 1) + g[i]
    check(f, [x], x=uniform(7))


def test_values_that_share_a_tensor():
    x, y, f = td.Tensor("x", (6,), td.f64), td.Tensor("y", (6,), td.f64), td.Func("f")
    f[()] = td.reduce(logaddexp, -1e300, x[k] * y[k] + x[k], k)
    check(f, [x, y], x=uniform(6), y=uniform(6, seed=2))


def test_ties_belong_to_the_value_that_the_combiner_chooses():
    """The first of two equal ones, with what belongs to it."""
    x, w, f = td.Tensor("x", (4,), td.f64), td.Tensor("w", (4,), td.f64), td.Func("f")

    def best(a, b):
        wins = b[0] > a[0]
        return td.where(wins, b[0], a[0]), td.where(wins, b[1], a[1])

    value, weight = td.reduce(best, (-1e300, 0.0), (x[k], w[k]), k)
    f[()] = value + 10 * weight
    dx, dw = td.compile(td.grad(f, [x, w]))(x=np.array([1.0, 3.0, 3.0, 2.0]), w=np.arange(4.0))
    np.testing.assert_array_equal(dx, [0, 1, 0, 0])
    np.testing.assert_array_equal(dw, [0, 10, 0, 0])


@pytest.mark.parametrize("extent", [0, 1])
def test_no_values_and_one(extent):
    x, f = td.Tensor("x", ("N",), td.f64), td.Func("f")
    f[()] = td.reduce(lambda a, b: a * b, 1.0, x[k] * x[k], k)
    got = td.compile(td.Schedule(td.grad(f, x), sizes={"N": extent}))(x=np.full(extent, 3.0))
    np.testing.assert_array_equal(got, np.full(extent, 6.0))


def test_narrow_and_single_floats():
    for t, bound in ((td.f32, 1e-5), (td.f16, 1e-2)):
        x, f = td.Tensor("x", (5,), t), td.Func("f")
        f[()] = td.reduce(lambda a, b: a * b, 1.0, x[k], k)
        v = np.linspace(0.5, 1.5, 5).astype(t.numpy)
        got = td.compile(td.grad(f, x))(x=v)
        assert got.dtype == v.dtype
        np.testing.assert_allclose(got.astype(float), np.prod(v.astype(float)) / v, rtol=bound)


def test_adjoints_of_scans_take_linear_work():
    """A prefix and a suffix of each value; nothing combines all pairs."""
    f, x = rows("online")
    ranges = [d.ranges for g in td.Schedule(td.vjp(f, x, 1.0)).program.funcs for d in g.definitions]
    assert max(map(len, ranges)) == 1
    names = [g.name for g in td.Schedule(td.vjp(f, x, 1.0)).program.funcs]
    assert any("prefix" in n for n in names)
    assert any("suffix" in n for n in names)


def test_what_has_no_derivative_says_so_at_the_reduction():
    x, f, g, s = td.Tensor("x", (4, 4), td.f64), td.Func("f"), td.Func("g"), td.Scalar("s", td.f64)
    f[i] = td.reduce(lambda a, b: a + s * b, 0.0, x[i, k], k)
    with pytest.raises(td.DefinitionError, match="combines by the scalar 's'"):
        td.vjp(f, x, 1.0)
    g[i] = td.reduce(lambda a, b: a * 0.5 + b, 0.0, x[i, k], k, associative=False)
    with pytest.raises(td.DefinitionError, match="'custom_ordered' of 'g' has no derivative"):
        td.vjp(g, x, 1.0)


def test_updates_follow_a_reduction():
    x, f, r = td.Tensor("x", (4, 4), td.f64), td.Func("f"), td.range("r", 1, 4)
    f[i] = td.reduce(lambda a, b: a * b, 1.0, x[i, k], k)
    f[0] = 1.0
    f[r] = f[r] * f[r - 1]
    check(f, [x], x=uniform(4, 4))


def test_a_recurrence_of_several_values_is_refused():
    x, p, f, r = td.Tensor("x", (6,), td.f64), td.Func("p", shape=(6,)), td.Func("f"), td.range("r", 1, 6)
    p[i] = (x[i], x[i] * 2)
    p[r] = (p[r - 1][0] * x[r] + p[r - 1][1], p[r - 1][0])
    f[()] = td.sum(p[i][0] + 3 * p[i][1], axis=i)
    with pytest.raises(td.DefinitionError, match="stores several values and reads them"):
        td.grad(f, x)

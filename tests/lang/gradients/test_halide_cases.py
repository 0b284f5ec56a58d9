"""The programs of Halide's test of automatic differentiation, written anew; test_reverse_scan is refused.

test_implicit_vars and the part on fast_inverse have no counterpart in the language.
"""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.build_program import build_program
from tdsl.lang.expr import Var

x, y, a, b, k = td.vars("x y a b k")


def loss_of(f, extents, weight=None):
    """The sum of a func over its first elements."""
    axes = tuple(td.range(f"r{n}", 0, e) for n, e in enumerate(extents))
    loss = td.Func("loss")
    loss[()] = td.sum(f[axes] if weight is None else f[axes] * weight(*axes), axis=axes)
    return loss


def loss_of_squares(f, extents):
    g = td.Func("squared")
    variables = (x, y)[: len(extents)]
    g[variables] = f[variables] * f[variables]
    return loss_of(g, extents)


def call(funcs, arrays):
    """The values of funcs for those of the arrays that they read."""
    program = build_program(funcs)
    got = td.compile(funcs)(**{n: arrays[n] for n in program.parameters})
    return got if isinstance(got, tuple) else (got,)


def gradients(loss, wrt, **arrays):
    """The derivatives of a loss as arrays."""
    return call(td.grad(loss, list(wrt)), arrays)


def is_gathered(f):
    """True if a func and all that it reads have pure updates only, as Halide's test demands."""
    program = build_program((f,))
    return all(isinstance(e, Var) for g in program.funcs for d in g.definitions for e in d.index)


def tensor(name, values, t=td.f64):
    v = np.asarray(values, t.numpy)
    return td.Tensor(name, v.shape, t), v


def scalar_slope(function, at, t):
    p, f = td.Scalar("p", t), td.Func("f")
    f[()] = function(p)
    return call((td.grad(f, p),), {"p": at})[0]


@pytest.mark.parametrize("t", [td.f32, td.f64])
@pytest.mark.parametrize(
    "function, at, slope",
    [
        (lambda p: p * p - 2 * p + 5 + 3 / p, 5, 8 - 3 / 25),
        (td.sin, 0.5, np.cos(0.5)),
        (td.cos, 0.5, -np.sin(0.5)),
        (td.tan, 0.5, 1 / np.cos(0.5) ** 2),
        (td.exp, 0.5, np.exp(0.5)),
        (td.log, 0.5, 2),
        (td.sqrt, 0.5, 0.5 / np.sqrt(0.5)),
        (lambda p: p**1.5, 0.5, 1.5 * np.sqrt(0.5)),
        (lambda p: td.power(1.5, p), 0.5, np.log(1.5) * 1.5**0.5),
        (lambda p: td.power(p, 0) + p, 0, 1),
        (td.arcsin, 0.5, 1 / np.sqrt(0.75)),
        (td.arccos, 0.5, -1 / np.sqrt(0.75)),
        (td.arctan, 0.5, 1 / 1.25),
        (lambda p: td.arctan2(p, 2), 0.5, 2 / 4.25),
        (lambda p: td.arctan2(2, p), 0.5, -2 / 4.25),
        (td.sinh, 0.5, np.cosh(0.5)),
        (td.cosh, 0.5, np.sinh(0.5)),
        (td.tanh, 0.5, 1 / np.cosh(0.5) ** 2),
        (td.arcsinh, 0.5, 1 / np.sqrt(1.25)),
        (lambda p: td.arccosh(p + 1), 0.5, 1 / np.sqrt(0.5 * 2.5)),
        (td.arctanh, 0.5, 1 / 0.75),
        (td.rsqrt, 2.5, -0.5 * 2.5**-1.5),
        (lambda p: td.ceil(p) + td.floor(p) + td.round(p) + td.trunc(p), 2.5, 0),
        (
            lambda p: (
                2 * td.maximum(p, 5) + 3 * td.maximum(p, 1) + 5 * td.minimum(p, 3) + 7 * td.minimum(p, 2)
            ),
            2.5,
            8,
        ),
        (lambda p: 2 * abs(p) + 3 * abs(-p), -2.5, -5),
        (lambda p: td.where(p > 0, 2 * p, 3 * p) + td.where(p < 0, 5 * p, 7 * p), 5, 9),
        (lambda p: td.lerp(p, 6, 0.1), 2, 0.9),
        (lambda p: td.lerp(2, p, 0.1), 6, 0.1),
        (lambda p: td.lerp(2, 6, p), 0.1, 4),
        (td.exp2, 0.5, np.log(2) * 2**0.5),
        (td.log2, 0.5, 2 / np.log(2)),
        (td.log10, 0.5, 2 / np.log(10)),
        (td.expm1, 0.5, np.exp(0.5)),
        (td.log1p, 0.5, 1 / 1.5),
        (td.erf, 0.5, 2 / np.sqrt(np.pi) * np.exp(-0.25)),
        (td.sigmoid, 0.5, np.exp(-0.5) / (1 + np.exp(-0.5)) ** 2),
        (lambda p: td.hypot(p, 2), 0.5, 0.5 / np.hypot(0.5, 2)),
        (lambda p: td.fma(p, p, p), 0.5, 2),
        (lambda p: p % 2.0, 4.5, 1),
        (lambda p: 4.5 % p, 2.0, -2),
        (lambda p: td.copysign(p, -1.0), 0.5, -1),
    ],
)
def test_scalar(function, at, slope, t):
    np.testing.assert_allclose(scalar_slope(function, at, t), slope, rtol=2e-6)


def test_1d_box_no_clamp():
    source, v = tensor("source", [1, 2, 3])
    blur = td.Func("blur")
    blur[x] = source[x] + source[x + 1]
    loss = loss_of_squares(blur, (2,))
    (d,) = gradients(loss, [source], source=v)
    assert is_gathered(td.grad(loss, source))
    d_blur = 2 * (v[:2] + v[1:])
    np.testing.assert_allclose(d, [d_blur[0], d_blur.sum(), d_blur[1]])


def test_1d_box():
    source, v = tensor("source", [1, 2])
    clamped, blur = td.Func("clamped"), td.Func("blur")
    clamped[x] = source[td.clip(x, 0, 1)]
    blur[x] = clamped[x] + clamped[x + 1]
    loss = loss_of_squares(blur, (2,))
    assert is_gathered(td.grad(loss, source))
    d_blur = 2 * np.array([3, 4])
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], [d_blur[0], d_blur[0] + 2 * d_blur[1]])


def test_2d_box():
    v = np.outer(np.arange(1.0, 6), np.arange(2.0, 7))
    source, v = tensor("source", v)
    clamped, blur_x, blur_y = td.Func("clamped"), td.Func("blur_x"), td.Func("blur_y")
    clamped[x, y] = source[td.clip(x, 0, 4), td.clip(y, 0, 4)]
    blur_x[x, y] = clamped[x, y] + clamped[x + 1, y] + clamped[x + 2, y]
    blur_y[x, y] = blur_x[x, y - 1] + blur_x[x, y] + blur_x[x, y + 1]
    loss = loss_of_squares(blur_y, (5, 5))
    assert is_gathered(td.grad(loss, source))
    at = np.clip(np.arange(-1, 7), 0, 4)
    rows, columns = np.eye(5)[at[1:]], np.eye(5)[at[:-1]]
    in_x = rows[:5] + rows[1:6] + rows[2:7]
    in_y = columns[:5] + columns[1:6] + columns[2:7]
    expected = in_x.T @ (2 * (in_x @ v @ in_y.T)) @ in_y
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], expected)


def test_update():
    source, v = tensor("source", [1, 2, 3])
    clamped, blur = td.Func("clamped"), td.Func("blur")
    clamped[x] = source[td.clip(x, 0, 2)]
    blur[x] = clamped[x]
    blur[x] += clamped[x + 1]
    d = 2 * np.array([3, 5, 6])
    got = gradients(loss_of_squares(blur, (3,)), [source], source=v)[0]
    np.testing.assert_allclose(got, [d[0], d[0] + d[1], d[1] + 2 * d[2]])


def test_nonlinear_update():
    source, v = tensor("source", [1, 2, 3])
    clamped, update = td.Func("clamped"), td.Func("update")
    clamped[x] = source[td.clip(x, 0, 2)]
    update[x, y] = td.cast(0, td.f64)
    update[x, 0] = clamped[x]
    update[x, 1] = update[x, 0] * update[x, 0] + clamped[x + 1]
    r, loss = td.range("r", 0, 3), td.Func("loss")
    loss[()] = td.sum(update[r, 1], axis=r)
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], [2, 5, 8])


def test_rdom_conv():
    source, v = tensor("source", [1, 2, 3, 4])
    kernel, w = tensor("kernel", [2, 1])
    clamped, f = td.Func("clamped"), td.Func("f")
    clamped[x] = source[td.clip(x, 0, 3)]
    f[x] = td.sum(clamped[x + k] * kernel[k], axis=k)
    loss = loss_of_squares(f, (4,))
    adjoints = td.grad(loss, [source, kernel])
    assert all(map(is_gathered, adjoints))
    to_source, to_kernel = gradients(loss, [source, kernel], source=v, kernel=w)
    d = 2 * (2 * v + np.array([2, 3, 4, 4]))
    np.testing.assert_allclose(to_source, 2 * d + np.array([0, d[0], d[1], d[2] + d[3]]))
    np.testing.assert_allclose(to_kernel, [60 * 2 + 72, 72 * 2 + 90])


def test_horner_polynomial():
    c, v = tensor("c", np.arange(1.0, 9))
    p, r = td.Func("p"), td.range("r", 0, 8)
    p[x, y] = td.cast(0, td.f64)
    p[x, 7 - r] = p[x, 8 - r] * (td.cast(x, td.f64) / 1023) + c[r]
    s, loss = td.range("s", 0, 1024), td.Func("loss")
    loss[()] = td.sum(p[s, 0] / 1024, axis=s)
    at = np.arange(1024) / 1023
    expected = [np.mean(at ** (7 - n)) for n in range(8)]
    np.testing.assert_allclose(gradients(loss, [c], c=v)[0], expected)


def test_nonlinear_order_dependent_rdom():
    source, v = tensor("source", [2, 3])
    f, r, s, loss = td.Func("f"), td.range("r", 0, 2), td.range("s", 0, 2), td.Func("loss")
    f[x, y] = td.cast(0, td.f64)
    f[x, 0] = source[x]
    f[x, r + 1] = f[x, r] * f[x, r] + source[r]
    loss[()] = td.sum(f[s, 2], axis=s)
    first = v**2 + v[0]
    expected = [np.sum(2 * first), 2.0]
    expected = np.array(expected) + 2 * first * 2 * v
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], expected)


def test_1d_to_2d():
    source, v = tensor("source", [1, 2])
    f = td.Func("f")
    f[x, y] = (td.cast(x, td.f64) + 1) * source[y]
    loss = loss_of_squares(f, (2, 2))
    assert is_gathered(td.grad(loss, source))
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], [10, 20])


@pytest.mark.parametrize("rank", [1, 2])
def test_linear_resampling(rank):
    more, at = ((), ()) if rank == 1 else ((y,), (1,))
    where, v0 = tensor("where", np.reshape([0.3, 1.8], (2, *at)))
    values, v1 = tensor("values", np.reshape([1.0, 2.0, 4.0], (3, *at)))
    c0, c1, f = td.Func("c0"), td.Func("c1"), td.Func("f")
    inside = tuple(td.clip(v, 0, 0) for v in more)
    c0[(x, *more)] = where[(td.clip(x, 0, 1), *inside)]
    c1[(x, *more)] = values[(td.clip(x, 0, 2), *inside)]
    g = c0[(x, *more)]
    low = td.clip(td.floor(g), 0.0, 1.0)
    n, w = td.clip(td.cast(low, td.i64), 0, 1), g - td.floor(g)
    f[(x, *more)] = c1[(n, *more)] * (1 - w) + c1[(n + 1, *more)] * w
    loss = loss_of(f, (2, *at))
    to_where, to_values = gradients(loss, [where, values], where=v0, values=v1)
    np.testing.assert_allclose(to_where.ravel(), [1, 2])
    np.testing.assert_allclose(to_values.ravel(), [0.7, 0.5, 0.8])


def test_sparse_update():
    source, v = tensor("source", [1, 2, 3])
    f = td.Func("f")
    f[x] = source[x]
    f[1] = td.cast(0, td.f64)
    f[2] = 2 * source[1]
    np.testing.assert_allclose(gradients(loss_of(f, (3,)), [source], source=v)[0], [1, 2, 0])


@pytest.mark.parametrize("times", [1, 10])
def test_histogram(times):
    at, places = tensor("at", [2, 2, 1, 3, 0], td.i64)
    weights, v = tensor("weights", [0.5, 1, 1.5, 2, 2.5])
    f, r = td.Func("f"), td.range("r", 0, 4)
    f[x] = td.cast(0, td.f64)
    for _ in range(times):
        f[td.clip(at[r], 0, 3)] += weights[r]
    loss = loss_of(f, (4,), lambda n: td.cast(n + 1, td.f64))
    got = gradients(loss, [weights], at=places, weights=v)[0]
    np.testing.assert_allclose(got, times * np.array([3.0, 3, 2, 4, 0]))


def test_histogram_no_bounds():
    weights, v = tensor("weights", [0.5, 1, 1.5, 2, 2.5])
    places, f, r = td.Func("places", shape=4), td.Func("f", shape=4), td.range("r", 0, 4)
    places[x] = td.where(x == 2, 1, td.where(x == 3, 3, 2))
    f[x] = td.cast(0, td.f64)
    f[td.clip(places[r], 0, 3)] += weights[r]
    loss = loss_of(f, (4,), lambda n: td.cast(n + 1, td.f64))
    np.testing.assert_allclose(gradients(loss, [weights], weights=v)[0], [3, 3, 2, 4, 0])


def test_rdom_update():
    source, v = tensor("source", [1, 2, 3])
    f, r, s = td.Func("f", shape=7), td.range("r", 1, 3), td.range("s", 3, 7)
    f[x] = td.pad(source)[x]
    f[r] = source[r - 1]
    f[s] = td.cast(0, td.f64)
    np.testing.assert_allclose(gradients(loss_of(f, (5,)), [source], source=v)[0], [2, 1, 0])


@pytest.mark.parametrize(
    "mode, expected",
    [("edge", [1, 5]), ("constant", [1, 2]), ("wrap", [3, 3]), ("symmetric", [2, 4]), ("reflect", [3, 3])],
)
def test_boundary_conditions(mode, expected):
    source, v = tensor("source", [1, 2])
    p, blur = td.pad(source, mode=mode), td.Func("blur")
    blur[x] = p[x] + p[x + 1]
    loss = loss_of(blur, (3,))
    assert is_gathered(td.grad(loss, source))
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], expected)


def test_second_order():
    p, f = td.Scalar("p", td.f64), td.Func("f")
    f[()] = p * p + 3 * p + 4
    first = td.grad(f, p)
    assert td.compile(first)(p=1.0) == 5
    assert call((td.grad(first, p),), {"p": 1.0})[0] == 2


def test_second_order_conv():
    source, v = tensor("source", np.arange(10) / 10)
    target, goal = tensor("target", np.arange(1, 11) / 10)
    kernel, w = tensor("kernel", [1.0, 1, 1])
    p, f, loss, r = td.pad(source, mode="edge"), td.Func("f"), td.Func("loss"), td.range("r", 0, 9)
    f[x] = td.sum(p[x + k - 1] * kernel[k], axis=k)
    loss[()] = td.sum(td.power(f[r] - target[r], 2), axis=r)
    d = td.grad(loss, source)
    again = td.Func("again")
    again[()] = td.sum(d[r], axis=r)
    matrix = np.eye(10)[np.clip(np.add.outer(np.arange(9), np.arange(-1, 2)), 0, 9)].sum(1)
    given = {"source": v, "target": goal, "kernel": w}
    np.testing.assert_allclose(td.compile(d)(**given), matrix.T @ (2 * (matrix @ v - goal[:9])))
    ones = (np.arange(10) < 9).astype(float)
    (got,) = call((td.grad(again, source),), given)
    np.testing.assert_allclose(got, matrix.T @ (2 * (matrix @ ones)))


def test_tuple():
    source, v = tensor("source", [1, 2, 3])
    pair, f = td.Func("pair"), td.Func("f")
    pair[x] = (source[x], source[x + 1])
    f[x] = pair[x][0] + pair[x][1] * pair[x][1]
    np.testing.assert_allclose(gradients(loss_of(f, (2,)), [source], source=v)[0], [1, 5, 6])


def test_floor_ceil():
    source, v = tensor("source", [1, 2, 3])
    low, high, f = td.Func("low", shape=8), td.Func("high", shape=8), td.Func("f")
    low[x] = source[td.clip(td.cast(td.floor(x / 4.0), td.i64), 0, 2)]
    high[x] = source[td.clip(td.cast(td.ceil(x / 4.0), td.i64), 0, 2)]
    f[x] = high[x] + low[x]
    np.testing.assert_allclose(gradients(loss_of(f, (8,)), [source], source=v)[0], [5, 8, 3])


def test_downsampling():
    source, v = tensor("source", np.arange(10.0))
    f, r = td.Func("f"), td.range("r", 0, 4)
    f[x] = td.sum(source[4 * x + r], axis=r)
    loss = loss_of(f, (2,))
    assert is_gathered(td.grad(loss, source))
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], [1] * 8 + [0] * 2)


def test_upsampling():
    source, v = tensor("source", np.arange(4.0))
    f = td.Func("f")
    f[x] = source[x // 4]
    loss = loss_of(f, (16,))
    assert is_gathered(td.grad(loss, source))
    np.testing.assert_allclose(gradients(loss, [source], source=v)[0], [4] * 4)


@pytest.mark.parametrize("transposed", [True, False])
def test_transpose_and_change_of_variables(transposed):
    source, v = tensor("source", np.add.outer(np.arange(5.0), np.arange(5.0)))
    target, goal = tensor("target", np.outer(np.arange(5.0), np.arange(5.0)))
    first, f, error = td.Func("first"), td.Func("f"), td.Func("error")
    first[x, y] = source[y, x] if transposed else source[x, y]
    f[a, b] = first[a, b]
    error[a, b] = td.power(f[a, b] - target[a, b], 2)
    got = gradients(loss_of(error, (5, 5)), [source], source=v, target=goal)[0]
    np.testing.assert_allclose(got, 2 * (v - goal))


def test_rdom_predicate():
    source, v = tensor("source", np.add.outer(np.arange(7.0), np.arange(7.0)))
    r = td.range("r", 0, 7)
    s = td.range("s", 0, 7, where=lambda s: (r - 3) * (r - 3) + (s - 3) * (s - 3) <= 10)
    f = td.Func("f")
    f[x, y] = source[x, y]
    f[r, s] *= td.cast(2, td.f64)
    got = gradients(loss_of(f, (7, 7)), [source], source=v)[0]
    square = (np.arange(7) - 3) ** 2
    np.testing.assert_allclose(got, 1 + (np.add.outer(square, square) <= 10))


def test_reverse_scan():
    source, _ = tensor("source", np.arange(5.0))
    f, r = td.Func("f"), td.range("r", 0, 5)
    f[x] = source[x]
    f[r] = f[4 - r]
    with pytest.raises(td.DefinitionError, match="varying distance"):
        td.grad(loss_of(f, (5,)), source)


def test_diagonal():
    source, v = tensor("source", np.arange(5.0))
    f = td.Func("f", shape=(4, 4))
    f[x, y] = td.cast(0, td.f64)
    f[x, x] = source[x] + source[x + 1]
    np.testing.assert_allclose(gradients(loss_of(f, (4, 4)), [source], source=v)[0], [1, 2, 2, 2, 1])


def test_select_guard():
    source, v = tensor("source", [0, 1])
    f, e = td.Func("f"), source[x]
    f[x] = (
        td.where(e > 0, (x + 1) / e, e)
        + td.where(e > 0, td.sqrt(e), 1)
        + td.where(e > 0, td.arctan2(1, e), 2 * e)
        + td.where(e > 0, td.log(e), 3 * e)
    )
    got = gradients(loss_of(f, (2,)), [source], source=v)[0]
    np.testing.assert_allclose(got, [1 + 0 + 2 + 3, -2 + 0.5 - 0.5 + 1])


def test_param():
    p, source, f = td.Scalar("p", td.f64), td.Tensor("source", ("N",), td.f64), td.Func("f")
    f[()] = p * p * source.shape[0] * source[0]
    dp, ds = td.grad(f, [p, source])
    run = td.compile((dp, ds))
    got = run(p=2.0, source=np.array([1.0, 0.0]))
    assert got[0] == 8
    np.testing.assert_allclose(got[1], [8, 0])

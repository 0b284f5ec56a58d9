"""Gradients of programs: values against central differences, and the form of the adjoints."""

import numpy as np
import pytest

import tdsl as td
from tdsl.lang.build_program import build_program

i, j, k, x, y, r = td.vars("i j k x y r")


def slopes(f, wrt, seed=3, sizes=None, **given):
    """(slope by the adjoints, slope by differences) along a random direction; `f` may have any rank."""
    rng = np.random.default_rng(seed)
    forward = td.compile(f)
    out = np.asarray(forward(**given))
    dy = rng.uniform(-1, 1, out.shape)
    adjoints = td.vjp(f, wrt, td.Tensor("dy", out.shape, td.f64))
    program = build_program(tuple(adjoints))
    named = {n: (given | {"dy": dy})[n] for n in program.parameters}
    run = td.compile(td.Schedule(*adjoints, sizes=sizes or {}))
    got = run(**named)
    got = got if isinstance(got, tuple) else (got,)
    step = {t.name: rng.uniform(-1, 1, np.shape(given[t.name])) for t in wrt}
    h = 1e-6
    up, down = (forward(**given | {n: given[n] + s * h * d for n, d in step.items()}) for s in (1, -1))
    for t, g in zip(wrt, got, strict=True):
        assert np.shape(g) == np.shape(given[t.name])
    mine = sum(float(np.sum(g * step[t.name])) for t, g in zip(wrt, got, strict=True))
    return mine, float(np.sum((np.asarray(up) - np.asarray(down)) / (2 * h) * dy))


def check(f, wrt, **given):
    mine, theirs = slopes(f, wrt, **given)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def uniform(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1.5, 1.5, shape)


def test_a_product_has_products_as_adjoints():
    a, b = td.Tensor("a", (5, 7), td.f64), td.Tensor("b", (7, 3), td.f64)
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    da, db = td.vjp(c, [a, b], td.Tensor("dc", (5, 3), td.f64))
    assert repr(da) == "d_a[i, k] = sum(dc[i, j] * b[k, j], axis=j) for j in range(0, 3)"
    assert repr(db) == "d_b[k, j] = sum(dc[i, j] * a[i, k], axis=i) for i in range(0, 5)"
    check(c, [a, b], a=uniform(5, 7), b=uniform(7, 3, seed=2))


def test_symbolic_sizes_need_no_guard():
    a, b = td.Tensor("a", ("M", "K"), td.f64), td.Tensor("b", ("K", "N"), td.f64)
    c = td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    da = td.vjp(c, a, td.Tensor("dc", ("M", "N"), td.f64))
    assert repr(da) == "d_a[i, k] = sum(dc[i, j] * b[k, j], axis=j) for j in range(0, N)"


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_convolution(stride, padded):
    a, w = td.Tensor("a", (2, 9, 8), td.f64), td.Tensor("w", (3, 2, 4, 4), td.f64)
    o, c, dy, dx = td.vars("o c dy dx")
    f = td.Func("f", shape=(3, 9 // stride, 8 // stride) if padded else None)
    source = td.pad(a) if padded else a
    f[o, y, x] = td.sum(
        source[c, stride * y + dy - padded, stride * x + dx - padded] * w[o, c, dy, dx], axis=(c, dy, dx)
    )
    adjoints = td.vjp(f, [a, w], td.Tensor("d", f.shape, td.f64))
    assert all(len(g.definitions) == 1 for g in adjoints)
    check(f, [a, w], a=uniform(2, 9, 8), w=uniform(3, 2, 4, 4, seed=2))


@pytest.mark.in_part(10)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("extents", [(6, 5), (1, 1), (2, 1), (3, 2)])
def test_padding(mode, extents):
    a, f = td.Tensor("a", extents, td.f64), td.Func("f", shape=extents)
    p = td.pad(a, mode=mode)
    f[y, x] = p[y - 1, x] * p[y, x + 1] + p[y + 2, x] ** 2
    (da,) = td.vjp(f, [a], td.Tensor("d", extents, td.f64))
    assert len(da.definitions) == 1
    check(f, [a], a=uniform(*extents))


@pytest.mark.parametrize("mode", ["edge", "symmetric", "wrap"])
def test_padding_of_symbolic_extents(mode):
    a, f = td.Tensor("a", ("N",), td.f64), td.Func("f")
    p = td.pad(a, mode=mode)
    f[i] = p[i - 1] * p[i + 1] + a[i]
    (da,) = td.vjp(f, [a], td.Tensor("d", ("N",), td.f64))
    assert len(da.definitions) == 1
    check(f, [a], a=uniform(7))
    check(f, [a], a=uniform(1))


def test_softmax_and_layer_norm():
    a, w = td.Tensor("a", (4, 9), td.f64), td.Tensor("w", (9,), td.f64)
    m, e, s, mean, var, f = map(td.Func, ("m", "e", "s", "mean", "var", "f"))
    m[i] = td.max(a[i, j], axis=j)
    e[i, j] = td.exp(a[i, j] - m[i])
    s[i] = td.sum(e[i, j], axis=j)
    p = td.Func("p")
    p[i, j] = e[i, j] / s[i]
    mean[i] = td.mean(p[i, j], axis=j)
    var[i] = td.mean((p[i, j] - mean[i]) ** 2, axis=j)
    f[i, j] = (p[i, j] - mean[i]) * td.rsqrt(var[i] + 1e-5) * w[j]
    check(f, [a, w], a=uniform(4, 9), w=uniform(9, seed=2))


def test_a_table_read_by_data_is_added_to_by_an_update():
    t, at, f = td.Tensor("t", (6, 3), td.f64), td.Tensor("at", (8,), td.i64), td.Func("f")
    f[i, j] = t[td.clip(at[i], 0, 5), j] * td.cast(j + 1, td.f64)
    (dt,) = td.vjp(f, [t], td.Tensor("d", (8, 3), td.f64))
    assert len(dt.definitions) == 2
    check(f, [t], t=uniform(6, 3), at=np.array([0, 5, 5, 2, -3, 9, 1, 0]))


def test_a_scatter_is_gathered():
    a, at = td.Tensor("a", (8,), td.f64), td.Tensor("at", (8,), td.i64)
    f = td.Func("f", shape=(4,))
    f[td.clip(at[i], 0, 3)] += a[i] ** 2
    (da,) = td.vjp(f, [a], td.Tensor("d", (4,), td.f64))
    assert len(da.definitions) == 1
    check(f, [a], a=uniform(8), at=np.array([0, 3, 3, 2, -3, 9, 1, 0]))


def test_ties_share_the_adjoint():
    a, f = td.Tensor("a", (4,), td.f64), td.Func("f")
    f[()] = td.max(a[i], axis=i)
    got = td.compile(td.grad(f, a))(np.array([2.0, 1.0, 2.0, 2.0]))
    np.testing.assert_allclose(got, [1 / 3, 0, 1 / 3, 1 / 3])
    g = td.Func("g")
    g[()] = td.sum(td.maximum(a[i], 0), axis=i)
    np.testing.assert_array_equal(td.compile(td.grad(g, a))(np.array([2.0, 0.0, -1.0, 0.5])), [1, 0.5, 0, 1])


@pytest.mark.parametrize("values", [[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 3.0, 0.0]])
def test_a_product_of_all_values_may_contain_zeros(values):
    a, f = td.Tensor("a", (3,), td.f64), td.Func("f")
    f[()] = td.prod(a[i], axis=i)
    v = np.array(values)
    expected = [v[1] * v[2], v[0] * v[2], v[0] * v[1]]
    np.testing.assert_allclose(td.compile(td.grad(f, a))(v), expected)


def test_the_branch_not_taken_does_not_matter():
    a, f = td.Tensor("a", (4,), td.f64), td.Func("f")
    f[()] = td.sum(td.where(a[i] > 0, td.log(a[i]) * td.sqrt(a[i]), 0), axis=i)
    got = td.compile(td.grad(f, a))(np.array([1.0, 0.0, -1.0, 4.0]))
    np.testing.assert_allclose(got, [1, 0, 0, (np.log(4) * 0.5 + 1) / 2])


def test_scalars_and_funcs_have_adjoints():
    a, s, f, g = td.Tensor("a", (5,), td.f64), td.Scalar("s", td.f64), td.Func("f"), td.Func("g")
    f[i] = a[i] * s
    g[()] = td.sum(f[i] ** 2, axis=i)
    ds, df = td.grad(g, [s, f])
    v = np.arange(5.0)
    got = td.compile((ds, df))(a=v, s=3.0)
    np.testing.assert_allclose(got[0], 2 * 3 * np.sum(v * v))
    np.testing.assert_allclose(got[1], 2 * 3 * v)


def test_several_outputs_are_added():
    a, f, g = td.Tensor("a", (5,), td.f64), td.Func("f"), td.Func("g")
    f[i] = a[i] ** 2
    g[i] = td.sin(a[i]) * f[i]
    da = td.vjp((f, g), a, (1.0, td.Tensor("dg", (5,), td.f64)))
    v, dg = uniform(5), uniform(5, seed=2)
    np.testing.assert_allclose(
        td.compile(da)(a=v, dg=dg), 2 * v + dg * (np.cos(v) * v * v + np.sin(v) * 2 * v)
    )


def test_sums_of_narrow_floats_are_rounded_once():
    a, w, f = td.Tensor("a", (3, 4000), td.f16), td.Tensor("w", (4000, 2), td.f16), td.Func("f")
    f[i, j] = td.sum(a[i, k] * w[k, j], axis=k)
    d = td.Tensor("d", (3, 2), td.f16)
    da, dw = td.vjp(f, [a, w], d)
    assert da.dtype == dw.dtype == td.f16
    table, at, g = td.Tensor("t", (2,), td.f16), td.Tensor("at", (4000,), td.i64), td.Func("g")
    g[()] = td.sum(td.cast(table[td.clip(at[k], 0, 1)], td.f32), axis=k)
    counts = td.compile(td.grad(g, table))(at=np.arange(4000) % 2)
    np.testing.assert_array_equal(counts, [2000, 2000])
    assert counts.dtype == np.float16


@pytest.mark.parametrize("backwards", [False, True])
def test_recurrences_run_in_reverse(backwards):
    a, c, f = td.Tensor("a", (7, 3), td.f64), td.Tensor("c", (7, 3), td.f64), td.Func("f", shape=(7, 3))
    t = td.range("t", 1, 7)
    here, before = (6 - t, 7 - t) if backwards else (t, t - 1)
    f[i, j] = a[i, j] ** 2
    f[here, j] = td.tanh(f[before, j]) * c[here, j] + f[here, j]
    check(f, [a, c], a=uniform(7, 3), c=uniform(7, 3, seed=2))


def test_cumulative_sums_and_time_steps():
    a, f = td.Tensor("a", (7,), td.f64), td.Func("f")
    t = td.range("t", 1, 7)
    f[i] = a[i]
    f[t] += f[t - 1]
    check(f, [a], a=uniform(7))
    u0, u = td.Tensor("u0", (9,), td.f64), td.Func("u", shape=(6, 9))
    s, z = td.range("s", 1, 6), td.range("z", 1, 8)
    u[i, x] = td.where(i == 0, u0[x], 0)
    u[s, z] = u[s - 1, z] + 0.1 * (u[s - 1, z - 1] - 2 * u[s - 1, z] + u[s - 1, z + 1]) ** 2
    check(u, [u0], u0=uniform(9))


def test_a_func_for_each_step_of_a_vector_recurrence():
    a, u, loss = td.Tensor("a", (4, 3), td.f64), td.Tensor("u", (3, 3), td.f64), td.Func("loss")
    rows = [td.Func(f"row{n}") for n in range(4)]
    rows[0][i] = a[0, i]
    for n in range(1, 4):
        rows[n][i] = td.minimum(a[n, i], td.sum(rows[n - 1][k] * u[k, i], axis=k))
    loss[()] = td.sum(rows[3][i] ** 2, axis=i)
    check(loss, [a, u], a=uniform(4, 3), u=uniform(3, 3, seed=2))


def test_integers_are_constants_to_a_derivative():
    a, whole, step, place, share = td.Tensor("a", (5,), td.f64), *map(td.Func, ("w", "v", "p", "s"))
    v = np.array([0.25, -1.5, 3.5, 2.75, -0.25])
    whole[i] = td.cast(td.cast(a[i] * 10, td.i32), td.f64) * a[i]
    step[i] = td.cast(a[i] * 10, td.i32)  # in a func of integers
    place[i] = td.cast(td.argmax(a[k], axis=k) + step[i], td.f64) * a[i]
    share[()] = td.sum(a[i], axis=i) / td.sum(a[i] > 0, axis=i)
    tens = np.trunc(v * 10)
    for f, expected in ((whole, tens), (place, 2 + tens), (share, np.full(5, 1 / 3))):
        np.testing.assert_allclose(td.compile(td.vjp(f, a, 1.0))(v), expected)
    alone = td.Func("alone")
    alone[i] = td.cast(step[i], td.f64)
    np.testing.assert_array_equal(td.compile(td.Schedule(td.vjp(alone, a, 1.0)))(), np.zeros(5))


def test_second_derivatives():
    a, f = td.Tensor("a", (5,), td.f64), td.Func("f")
    f[()] = td.sum(td.sin(a[i]) * a[i] ** 2, axis=i)
    da = td.grad(f, a)
    v, w = uniform(5), uniform(5, seed=2)
    dda = td.vjp(da, a, td.Tensor("w", (5,), td.f64))
    second = -np.sin(v) * v**2 + 4 * np.cos(v) * v + 2 * np.sin(v)
    np.testing.assert_allclose(td.compile(dda)(a=v, w=w), second * w)


def test_empty_axes():
    a, w, f = td.Tensor("a", (0, 5), td.f64), td.Tensor("w", (5, 3), td.f64), td.Func("f")
    f[i, j] = td.sum(a[i, k] * w[k, j], axis=k)
    da, dw = td.vjp(f, [a, w], td.Tensor("d", (0, 3), td.f64))
    got = td.compile((da, dw))(a=np.zeros((0, 5)), w=np.zeros((5, 3)), d=np.zeros((0, 3)))
    assert got[0].shape == (0, 5)
    np.testing.assert_array_equal(got[1], np.zeros((5, 3)))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_padding_that_is_read_twice_at_every_size(mode, n, dynamic):
    a, f = td.Tensor("a", ("N",), td.f64), td.Func("f", shape=("N",))
    f[i] = td.pad(a, mode=mode)[i - 1] * 2 + td.pad(a, mode=mode)[i + 2]
    dy = uniform(n)
    expected = np.zeros(n)
    for at in range(n):
        for distance, factor in ((-1, 2), (2, 1)):
            if mode != "constant" or 0 <= at + distance < n:
                numbers = np.pad(np.arange(n), 9, mode=mode)
                expected[numbers[at + distance + 9]] += factor * dy[at]
    if dynamic and n == 0 and mode in ("edge", "constant"):
        pytest.skip("an empty array that only a condition on its size protects is refused if sizes are open")
    run = td.compile(td.vjp(f, a, td.Tensor("dy", ("N",), td.f64)), **({"dynamic": "N"} if dynamic else {}))
    np.testing.assert_allclose(run(dy=dy), expected)


def test_a_quotient_of_several_variables_ends_in_an_update():
    t, f = td.Tensor("t", (3, 3), td.f64), td.Func("f", shape=(4, 4))
    f[x, y] = t[x // 2 - y // 2 + 1, x % 2 - y % 2 + 1]
    dt = td.vjp(f, t, td.Tensor("d", (4, 4), td.f64))
    assert len(dt.definitions) == 2
    check(f, [t], t=uniform(3, 3))


def test_what_has_no_derivative_is_an_error_at_its_line():
    a, at = td.Tensor("a", (4,), td.f64), td.Tensor("at", (4,), td.i64)
    b = td.Tensor("b", (4,), td.f64)
    f, g, h, place, rows, low, s = map(td.Func, ("f", "g", "h", "place", "rows", "low", "s"))
    f[i] = a[i] * 2
    place[()] = td.argmax(a[i], axis=i)
    u = td.Tensor("u", (4, 4), td.f64)
    step, m, n = (td.range(name, start, 4) for name, start in (("step", 1), ("m", 0), ("n", 0)))
    rows[i, j] = u[i, j]
    rows[step, m] += rows[n, step - 1] * u[n, m]
    low[i, j] = u[i, j]
    low[m, n] = td.minimum(low[m, n], low[m, step] + low[step, n])
    g[()] = td.reduce(lambda p, q: p * 0.5 + q, 0.0, a[i], axis=i, associative=False)
    h.with_shape(4)
    h[i] = 0.0
    r = td.range("r", 0, 4)
    h[td.clip(at[r], 0, 3)] = a[r]
    s[i] = (a[i], a[i])
    dy = td.Tensor("dy", (4,), td.f64)
    for call, words in (
        (lambda: td.vjp(place, a, 1.0), "holds i64, which has no derivative"),
        (lambda: td.grad(g, a), "'custom_ordered' of 'g' has no derivative"),
        (lambda: td.vjp(h, a, dy), "may store a cell twice, at a place that data choose"),
        (lambda: td.vjp(rows, u, 1.0), "'rows' may store a cell several times, and reads 'rows'"),
        (lambda: td.vjp(low, u, 1.0), "'low' may store a cell several times, and reads 'low'"),
        (lambda: td.vjp(s, a, dy), "has several values"),
        (lambda: td.vjp(f, b, dy), "no output depends on 'b'"),
        (lambda: td.vjp(h, at, dy), "no derivative by integers"),
        (lambda: td.grad(f, a), "td.grad takes a func with none"),
        (lambda: td.vjp(f, a, td.Tensor("e", (5,), td.f64)), "has shape"),
        (lambda: td.vjp(f, a, at), "an adjoint is a float"),
        (lambda: td.vjp(f, [a], [dy, dy]), "1 output and 2 seeds"),
        (lambda: td.vjp(a, a, dy), "taken of a func"),
        (lambda: td.vjp(f, "a", dy), "by tensors, scalars and funcs"),
    ):
        with pytest.raises(td.TdslError, match=words) as error:
            call()
        assert error.value.loc.file == __file__
        assert error.value.hint

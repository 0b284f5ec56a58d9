"""Outputs that need the same rows, and sums of columns, in one pass over them on a GPU."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.write_groups import BlockRows
from tdsl.codegen.gpu.launches import launches_of
from tests.codegen.cuda.programs import kernel_of

i, j, k = td.vars("i j k")
EPS = 1e-5


def kernels(s: td.Schedule) -> int:
    """The kernels of a program by the default schedule."""
    return len(launches_of(kernel_of(s)).launches)


def backward(m, n, dtype=td.f32):
    """The gradients of a layer norm for input, gain and shift."""
    dy, x, g = (td.Tensor(name, shape, dtype) for name, shape in (("dy", (m, n)), ("x", (m, n)), ("g", (n,))))
    wide_x, wide_dy, gain = (td.cast(v, td.f32) for v in (x[i, j], dy[i, j], g[j]))
    mean, var, a, b, dx, dg, db = map(td.Func, ("mean", "var", "a", "b", "dx", "dg", "db"))
    mean[i] = td.mean(wide_x, axis=j)
    var[i] = td.mean((wide_x - mean[i]) ** 2, axis=j)
    y = (wide_x - mean[i]) * td.rsqrt(var[i] + EPS)
    a[i] = td.mean(wide_dy * gain, axis=j)
    b[i] = td.mean(wide_dy * gain * y, axis=j)
    dx[i, j] = td.cast(td.rsqrt(var[i] + EPS) * (wide_dy * gain - a[i] - y * b[i]), dtype)
    dg[j] = td.sum(wide_dy * y, axis=i)
    db[j] = td.sum(wide_dy, axis=i)
    return dx, dg, db


def gradients(dy, x, g):
    scale = 1 / np.sqrt(x.var(1, keepdims=True) + EPS)
    y, dx = (x - x.mean(1, keepdims=True)) * scale, dy * g
    dx = scale * (dx - dx.mean(1, keepdims=True) - y * (dx * y).mean(1, keepdims=True))
    return dx, (dy * y).sum(0), dy.sum(0)


@pytest.mark.in_part(6)
@pytest.mark.parametrize("dtype", [td.f32, td.f16, td.f64])
@pytest.mark.parametrize("m, n, each", [(1, 64, 1), (7, 96, 3), (13, 37, 4), (5, 1100, 2), (30, 8, 2)])
def test_gradients_of_a_norm(rng, dtype, m, n, each):
    s = td.Schedule(*backward(m, n, dtype))
    plan = td.recipes.block_rows(s["dx"], each=each)
    assert {*plan.siblings} == {"dg", "db"}
    arrays = [rng.standard_normal(shape).astype(dtype.numpy) for shape in ((m, n), (m, n), (n,))]
    got = td.emulate(td.compile(s, target="cuda"))(*arrays)
    bound = 4e-3 if dtype is td.f16 else 2e-5
    for one, other in zip(got, gradients(*(x.astype(np.float64) for x in arrays)), strict=True):
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound * (1 + m**0.5))


def test_the_rows_of_gradients_are_read_once_by_default():
    """One kernel for the rows, and small ones that put the parts of both sums together."""
    assert kernels(td.Schedule(*backward(8192, 4096))) <= 4
    compiled = td.compile(td.Schedule(*backward(16384, 512)), target=td.Target("cuda", arch="sm_80"))
    arrays = [np.zeros(shape, np.float32) for shape in ((16384, 512), (16384, 512), (512,))]
    counts = td.count_memory(compiled, *arrays, blocks=4)
    moved = 32 * sum(a.fetched for a in counts.accesses if a.sectors)
    assert moved < 1.3 * 4 * (3 * 16384 * 512 + 3 * 512)


def statistics(m, n):
    """A norm, and the mean and deviation that its gradient needs."""
    x, mean, var, scale, y = td.Tensor("x", (m, n), td.f32), *map(td.Func, ("mean", "var", "scale", "y"))
    mean[i] = td.mean(x[i, j], axis=j)
    var[i] = td.mean((x[i, j] - mean[i]) ** 2, axis=j)
    scale[i] = td.rsqrt(var[i] + EPS)
    y[i, j] = (x[i, j] - mean[i]) * scale[i]
    return td.Schedule(y, mean, scale)


@pytest.mark.parametrize("m, n", [(1, 300), (7, 64), (130, 17)])
def test_outputs_that_others_read_are_computed_once(rng, m, n):
    s = statistics(m, n)
    x = rng.standard_normal((m, n)).astype(np.float32)
    assert kernels(statistics(m, n)) == 1
    y, mean, scale = td.emulate(td.compile(s, target="cuda"))(x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(1), atol=1e-6)
    np.testing.assert_allclose(scale, 1 / np.sqrt(wide.var(1) + EPS), rtol=1e-5)
    np.testing.assert_allclose(y, (wide - wide.mean(1, keepdims=True)) * scale[:, None], atol=1e-5)


@pytest.mark.parametrize("m, n", [(9, 300), (70, 33)])
def test_several_reductions_of_rows_share_a_kernel(rng, m, n):
    x, most, least, total = td.Tensor("x", (m, n), td.f32), *map(td.Func, ("most", "least", "total"))
    most[i] = td.max(x[i, j], axis=j)
    least[i] = td.min(x[i, j], axis=j)
    total[i] = td.sum(x[i, j] * 2, axis=j)
    s = td.Schedule(most, least, total)
    assert kernels(td.Schedule(most, least, total)) == 1
    array = rng.integers(-9, 9, (m, n)).astype(np.float32)
    got = td.emulate(td.compile(s, target="cuda"))(array)
    for one, other in zip(got, (array.max(1), array.min(1), 2 * array.sum(1)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(2, 50, 3, 8), (3, 5, 2, 4)])
def test_groups_of_channels_that_are_not_the_first_dimensions(rng, shape):
    """Rows are images and groups, between which the points of an image lie."""
    x, mean, var, out = td.Tensor("x", shape, td.f32), *map(td.Func, ("mean", "var", "out"))
    n, p, c = td.vars("n p c")
    mean[n, j] = td.mean(x[n, p, j, c], axis=(p, c))
    var[n, j] = td.mean((x[n, p, j, c] - mean[n, j]) ** 2, axis=(p, c))
    out[n, p, j, c] = (x[n, p, j, c] - mean[n, j]) * td.rsqrt(var[n, j] + EPS)
    s = td.Schedule(out)
    assert kernels(td.Schedule(out)) == 1
    array = rng.standard_normal(shape).astype(np.float32)
    got, wide = td.emulate(td.compile(s, target="cuda"))(array), array.astype(np.float64)
    centred = wide - wide.mean((1, 3), keepdims=True)
    np.testing.assert_allclose(got, centred / np.sqrt(wide.var((1, 3), keepdims=True) + EPS), atol=1e-5)


def test_sums_of_columns_that_registers_cannot_hold_stay_alone():
    s = td.Schedule(*backward(64, 100_000))
    plan = td.recipes.block_rows(s["dx"])
    assert isinstance(plan, BlockRows) and not plan.siblings and plan.each == 0


@pytest.mark.parametrize("m, n", [(37, 48), (300, 33)])
def test_element_wise_stages_and_sums_of_their_columns(rng, m, n):
    """The gradients of a rectified linear unit, and of its bias."""
    y, dy, dx, db = *(td.Tensor(name, (m, n), td.f32) for name in ("y", "dy")), td.Func("dx"), td.Func("db")
    dx[i, j] = td.where(y[i, j] > 0, dy[i, j], 0)
    db[j] = td.sum(td.where(y[i, j] > 0, dy[i, j], 0), axis=i)
    s = td.Schedule(dx, db)
    assert td.recipes.block_rows(s["dx"], each=3).siblings == ("db",)
    a, b = (rng.integers(-3, 4, (m, n)).astype(np.float32) for _ in "ab")
    got = td.emulate(td.compile(s, target="cuda"))(a, b)
    np.testing.assert_array_equal(got[0], b * (a > 0))
    np.testing.assert_array_equal(got[1], (b * (a > 0)).sum(0))

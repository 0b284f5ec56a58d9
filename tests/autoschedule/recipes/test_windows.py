"""Sums over windows without reuse across channels: depthwise convolutions, filters, pooling."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tdsl as td
from tdsl.machine.model import Machine

n, c, m, i, j, r, s = td.vars("n c m i j r s")
WIDE = Machine(vector_bytes=64, threads=2, registers=32)
FIRST, LAST = ("N", "C", "H", "W"), ("N", "H", "W", "C")


def small(rng, *shape):
    """Whole numbers, so that sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def by_channel(layout, window=(3, 3), step=1, dilation=1, mode="constant"):
    """A convolution of each channel; the padding keeps the size at step 1."""
    x = td.Tensor("x", layout, td.f32)
    w = td.Tensor("w", ("C", *window) if layout is FIRST else (*window, "C"), td.f32)
    sides = [dilation * (size // 2) for size in window]
    around, out = td.pad(x, mode=mode), td.Func("out")
    p, q = (step * v + dilation * k - side for v, k, side in zip((i, j), (r, s), sides, strict=True))
    if layout is FIRST:
        out[n, c, i, j] = td.sum(around[n, c, p, q] * w[c, r, s], axis=(r, s))
    else:
        out[n, i, j, c] = td.sum(around[n, p, q, c] * w[r, s, c], axis=(r, s))
    shape = [(x.shape[k] - 1) // step + 1 if name in "HW" else name for k, name in enumerate(layout)]
    return out.with_shape(*shape)


def expected(x, w, layout, step=1, dilation=1, mode="constant"):
    if layout is LAST:
        moved = expected(x.transpose(0, 3, 1, 2), w.transpose(2, 0, 1), FIRST, step, dilation, mode)
        return moved.transpose(0, 2, 3, 1)
    sides = [dilation * (size // 2) for size in w.shape[1:]]
    around = np.pad(x, ((0, 0), (0, 0), *((side, side) for side in sides)), mode=mode)
    spans = [dilation * (size - 1) + 1 for size in w.shape[1:]]
    views = sliding_window_view(around, spans, (2, 3))
    views = views[:, :, ::step, ::step, ::dilation, ::dilation]
    return np.einsum("ncijrs,crs->ncij", views, w)


def arrays(rng, layout, sizes, window=(3, 3)):
    """An image of (N, C, H, W) and weights in a layout."""
    x, w = small(rng, *sizes), small(rng, sizes[1], *window)
    return (x, w) if layout is FIRST else (x.transpose(0, 2, 3, 1).copy(), w.transpose(1, 2, 0).copy())


def planned(func, **sizes):
    """Compiled with the recipe for a machine with wide vectors, whatever this one has."""
    schedule = td.Schedule(func, sizes=sizes)
    assert td.recipes.conv(schedule[func.name], machine=WIDE) is not None
    return td.compile(schedule)


layouts = pytest.mark.parametrize("layout", [FIRST, LAST], ids=["first", "last"])


@pytest.mark.in_part(10)
@layouts
@pytest.mark.parametrize("sizes", [(1, 5, 7, 9), (2, 17, 6, 24), (1, 33, 4, 56), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("step, dilation", [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_each_channel_alone(rng, layout, sizes, step, dilation):
    x, w = arrays(rng, layout, sizes)
    want = expected(x, w, layout, step, dilation)
    func = by_channel(layout, step=step, dilation=dilation)
    np.testing.assert_array_equal(td.compile(func)(x, w), want)
    schedule = td.Schedule(func)
    td.recipes.conv(schedule["out"], machine=WIDE)
    np.testing.assert_array_equal(td.compile(schedule)(x, w), want)


@layouts
@pytest.mark.parametrize("window", [(1, 3), (5, 5), (7, 1)], ids=str)
@pytest.mark.parametrize("mode", ["edge", "constant"])
def test_windows_and_paddings(rng, layout, window, mode):
    x, w = arrays(rng, layout, (2, 9, 11, 19), window)
    run = planned(by_channel(layout, window, mode=mode))
    np.testing.assert_array_equal(run(x, w), expected(x, w, layout, mode=mode))


@layouts
def test_bias_and_relu_are_computed_with_the_sums(rng, layout):
    conv, out, b = by_channel(layout), td.Func("biased"), td.Tensor("b", ("C",), td.f32)
    index = (n, c, i, j) if layout is FIRST else (n, i, j, c)
    out[index] = td.maximum(conv[index] + b[c], 0)
    x, w = arrays(rng, layout, (1, 20, 12, 40))
    bias = small(rng, 20)
    run = td.compile(out)
    want = expected(x, w, layout) + (bias[:, None, None] if layout is FIRST else bias)
    np.testing.assert_array_equal(run(x=x, w=w, b=bias), np.maximum(want, 0))
    if "windows" in run.explain():  # the machine has vectors
        assert "biased: conv, with out inside" in run.explain()


def test_several_results_of_a_channel(rng):
    x, w = td.Tensor("x", ("N", "H", "W", "C"), td.f32), td.Tensor("w", (3, 3, "C", "M"), td.f32)
    out = td.Func("out")
    out[n, i, j, c, m] = td.sum(x[n, i + r, j + s, c] * w[r, s, c, m], axis=(r, s))
    a, b = small(rng, 1, 6, 9, 5), small(rng, 3, 3, 5, 4)
    views = sliding_window_view(a, (3, 3), (1, 2))
    np.testing.assert_array_equal(td.compile(out)(a, b), np.einsum("nijcrs,rscm->nijcm", views, b))


@pytest.mark.parametrize("step", [1, 2])
def test_largest_of_a_window(rng, step):
    x, out = td.Tensor("x", ("N", "H", "W", "C"), td.f32), td.Func("out")
    at = (td.range("a", 0, 2), td.range("b", 0, 3))
    out[n, i, j, c] = td.max(x[n, step * i + at[0], step * j + at[1], c], axis=at)
    a = rng.standard_normal((2, 8, 11, 21)).astype(np.float32)
    a[1, 3, 4, 5] = np.nan
    want = sliding_window_view(a, (2, 3), (1, 2))[:, ::step, ::step].max((4, 5))
    np.testing.assert_array_equal(td.compile(out)(a), want)


@layouts
@pytest.mark.parametrize("empty", [0, 1, 2, 3])
def test_nothing_to_do(layout, empty):
    sizes = [3, 4, 5, 20]
    sizes[empty] = 0
    x, w = np.ones(sizes, np.float32), np.ones((sizes[1], 3, 3), np.float32)
    if layout is LAST:
        x, w = x.transpose(0, 2, 3, 1).copy(), w.transpose(1, 2, 0).copy()
    assert td.compile(by_channel(layout))(x, w).shape == x.shape


def test_windows_of_no_terms_are_zero():
    x, w, out = td.Tensor("x", ("H", "W"), td.f32), td.Tensor("w", ("R", 3), td.f32), td.Func("out")
    out[i, j] = td.sum(x[i + r, j + s] * w[r, s], axis=(r, s))
    got = td.compile(out)(np.ones((5, 40), np.float32), np.ones((0, 3), np.float32))
    assert got.shape == (6, 38)
    assert not got.any()


@layouts
def test_nan_and_infinity_stay_where_they_are(rng, layout):
    x, w = arrays(rng, layout, (1, 6, 9, 18))
    w = np.ones_like(w)
    x[0, 1, 2, 3], x[0, 4, 4, 4] = np.nan, np.inf
    np.testing.assert_array_equal(planned(by_channel(layout))(x, w), expected(x, w, layout))


def test_the_plan_is_explained():
    func = by_channel(LAST)
    schedule = td.Schedule(func, sizes={"N": 1, "H": 56, "W": 56, "C": 64})
    tiles = td.recipes.conv(schedule["out"], machine=WIDE)
    assert (tiles.lanes, tiles.rows, tiles.vectors, tiles.unroll) == (16, 4, 1, ("r", "s"))
    assert tiles.parallel == "i"
    assert [loop.name for loop in schedule["out"].loops][:3] == ["n", "i", "j_o"]


@pytest.mark.parametrize("width, along", [(56, "j"), (28, "f"), (14, "f"), (24, "j")])
def test_vectors_run_along_rows_of_pixels_that_fill_them(width, along):
    x, w = td.Tensor("x", (1, 8, width, width), td.f32), td.Tensor("w", (32, 8, 3, 3), td.f32)
    f, around, out = td.vars("f"), td.pad(x), td.Func("out")
    out[n, f, i, j] = td.sum(around[n, c, i + r - 1, j + s - 1] * w[f, c, r, s], axis=(c, r, s))
    text = td.compile(out.with_shape(1, 32, width, width)).explain()
    if "a sum of 72 products" in text:  # the machine has vectors
        assert f"vectors along {along} of" in text


def test_large_windows_keep_a_loop():
    schedule = td.Schedule(by_channel(FIRST, (9, 9)))
    assert td.recipes.conv(schedule["out"], machine=WIDE).unroll == ("r",)


def test_columns_of_half_a_vector_have_no_masks(rng):
    a, b, out = td.Tensor("a", (12, 30), td.f32), td.Tensor("b", (30, 40), td.f32), td.Func("out")
    out[i, j] = td.sum(a[i, m] * b[m, j], axis=m)
    schedule = td.Schedule(out)
    assert td.recipes.matmul(schedule["out"], machine=WIDE).short
    x, y = small(rng, 12, 30), small(rng, 30, 40)
    run = td.compile(schedule)
    np.testing.assert_array_equal(run(x, y), x @ y)
    assert " if " not in str(run.loops())

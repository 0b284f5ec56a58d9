"""The recipe for convolutions: every layout, window and epilogue gives what NumPy gives."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import tdsl as td
from tdsl.machine.model import Machine

n, i, j, c, f, g, r, s = td.vars("n i j c f g r s")
WIDE = Machine(vector_bytes=64, threads=2, registers=32)


def small(rng, *shape):
    """Whole numbers, so that sums are exact in any order."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def images_last(step=1, dilation=1, pad=1):
    """A convolution of images stored pixel by pixel; `pad` pixels are added on each side."""
    x, w = (
        td.Tensor("x", ("N", "H", "W", "C"), td.f32),
        td.Tensor("w", ("R", "S", "C", "F"), td.f32),
    )
    around = td.pad(x) if pad else x
    conv = td.Func("conv")
    at = (step * i + dilation * r - pad, step * j + dilation * s - pad)
    conv[n, i, j, f] = td.sum(around[n, *at, c] * w[r, s, c, f], axis=(r, s, c))
    if not pad:
        return conv
    spans = [dilation * (w.shape[k] - 1) + 1 for k in (0, 1)]
    sides = [(x.shape[k + 1] + 2 * pad - spans[k]) // step + 1 for k in (0, 1)]
    return conv.with_shape("N", *sides, "F")


def images_first(step=1, dilation=1, pad=1):
    x, w = (
        td.Tensor("x", ("N", "C", "H", "W"), td.f32),
        td.Tensor("w", ("F", "C", "R", "S"), td.f32),
    )
    around = td.pad(x) if pad else x
    conv = td.Func("conv")
    at = (step * i + dilation * r - pad, step * j + dilation * s - pad)
    conv[n, f, i, j] = td.sum(around[n, c, *at] * w[f, c, r, s], axis=(c, r, s))
    if not pad:
        return conv
    spans = [dilation * (w.shape[k] - 1) + 1 for k in (2, 3)]
    sides = [(x.shape[k + 2] + 2 * pad - spans[k]) // step + 1 for k in (0, 1)]
    return conv.with_shape("N", "F", *sides)


def expected_last(x, w, step=1, dilation=1, pad=1):
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    spans = [dilation * (k - 1) + 1 for k in w.shape[:2]]
    views = sliding_window_view(x, spans, (1, 2))[:, ::step, ::step, :, ::dilation, ::dilation]
    return np.einsum("nijcrs,rscf->nijf", views, w)


def expected_first(x, w, step=1, dilation=1, pad=1):
    moved = expected_last(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), step, dilation, pad)
    return moved.transpose(0, 3, 1, 2)


def planned(func, sizes=None, **choices):
    """Compiled with the recipe for a machine with wide vectors, whatever this one has."""
    schedule = td.Schedule(func, sizes=sizes)
    assert td.recipes.conv(schedule[func.name], machine=WIDE, **choices) is not None
    return td.compile(schedule)


SIZES = [
    ((1, 5, 7, 3), (3, 3, 3, 5)),
    ((2, 4, 9, 8), (1, 1, 8, 16)),
    ((1, 6, 33, 5), (3, 5, 5, 37)),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("step, dilation, pad", [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 0)])
def test_channels_last(rng, sizes, step, dilation, pad):
    x, w = (small(rng, *shape) for shape in sizes)
    if pad == 0 and w.shape[1] > 3:
        w = w[:, :3]
    run = planned(images_last(step, dilation, pad))
    np.testing.assert_array_equal(run(x, w), expected_last(x, w, step, dilation, pad))


@pytest.mark.parametrize("sizes", [*SIZES, ((1, 6, 24, 3), (3, 3, 3, 7))], ids=str)
@pytest.mark.parametrize("step, dilation, pad", [(1, 1, 1), (2, 1, 1), (1, 2, 2), (1, 1, 0)])
def test_channels_first(rng, sizes, step, dilation, pad):
    x, w = (small(rng, *shape) for shape in sizes)
    x, w = x.transpose(0, 3, 1, 2).copy(), w.transpose(3, 2, 0, 1).copy()
    want = expected_first(x, w, step, dilation, pad)
    known = dict(zip("NCHW", x.shape, strict=True)) | dict(zip("FCRS", w.shape, strict=True))
    for sizes_known in (None, known):
        run = planned(images_first(step, dilation, pad), sizes_known)
        np.testing.assert_array_equal(run(x, w), want)


@pytest.mark.parametrize("build", [images_last, images_first])
def test_default_schedule(rng, build):
    last = build is images_last
    x = small(rng, *((2, 9, 11, 16) if last else (2, 16, 9, 11)))
    w = small(rng, *((3, 3, 16, 19) if last else (19, 16, 3, 3)))
    want = (expected_last if last else expected_first)(x, w)
    np.testing.assert_array_equal(td.compile(build())(x, w), want)


def test_bias_residual_and_relu_are_fused(rng):
    conv, out = images_last(pad=0), td.Func("out")
    b, y = td.Tensor("b", ("F",), td.f32), td.Tensor("y", ("N", "P", "Q", "F"), td.f32)
    out[n, i, j, f] = td.maximum(conv[n, i, j, f] + b[f] + y[n, i, j, f], 0)
    run = planned(out)
    a = {"x": small(rng, 2, 7, 9, 8), "w": small(rng, 3, 3, 8, 17), "b": small(rng, 17)}
    a["y"] = small(rng, 2, 5, 7, 17)
    want = np.maximum(expected_last(a["x"], a["w"], pad=0) + a["b"] + a["y"], 0)
    np.testing.assert_array_equal(run(**a), want)
    assert "conv = alloc(f32, [1, 1, " in str(run.loops())


def test_groups(rng):
    x, w = (
        td.Tensor("x", ("N", "H", "W", "G", "C"), td.f32),
        td.Tensor("w", ("G", 3, 3, "C", "F"), td.f32),
    )
    around, out = td.pad(x), td.Func("out")
    out[n, i, j, g, f] = td.sum(around[n, i + r - 1, j + s - 1, g, c] * w[g, r, s, c, f], axis=(r, s, c))
    run = planned(out.with_shape("N", "H", "W", "G", "F"))
    a, b = small(rng, 1, 5, 8, 3, 4), small(rng, 3, 3, 3, 4, 18)
    want = np.stack([expected_last(a[..., q, :], b[q]) for q in range(3)], axis=3)
    np.testing.assert_array_equal(run(a, b), want)


@pytest.mark.in_part(4)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("side, channels", [(7, 9), (1, 17), (20, 33)])
def test_two_in_one_nest(rng, last, deep, side, channels):
    shape = ("N", "H", "W", "C") if last else ("N", "C", "H", "W")
    inner = (c,) if deep else (f, c)
    axis = (r, s) if deep else (r, s, c)
    x = td.Tensor("x", shape, td.f32)
    w = td.Tensor("w", (3, 3, *("CF"[:1] if deep else "FC")), td.f32)
    v = td.Tensor("v", ("C" if deep else "F", "G"), td.f32)
    m = c if deep else f
    around, conv, out = td.pad(x), td.Func("conv"), td.Func("out")
    here, there = (n, i, j, m) if last else (n, m, i, j), (n, i, j, g) if last else (n, g, i, j)
    at = (n, i + r - 1, j + s - 1, c) if last else (n, c, i + r - 1, j + s - 1)
    conv[here] = td.sum(around[at] * w[r, s, *inner], axis=axis)
    out[there] = td.sum(td.maximum(conv[here], 0) * v[m, g], axis=m)
    out = out.with_shape(*(("N", "H", "W", "G") if last else ("N", "G", "H", "W")))
    a = small(rng, 2, side, side, channels)
    b = small(rng, 3, 3, *((channels,) if deep else (11, channels)))
    d = small(rng, channels if deep else 11, 19)
    middle = np.einsum(
        "nijcrs,rsc->nijc" if deep else "nijcrs,rsfc->nijf",
        sliding_window_view(np.pad(a, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), (1, 2)), b,
    )  # fmt: skip
    want = np.maximum(middle, 0) @ d
    if not last:
        a, want = a.transpose(0, 3, 1, 2).copy(), want.transpose(0, 3, 1, 2)
    sizes = {"N": 2, "H": side, "W": side, "C": channels, "G": 19} | ({} if deep else {"F": 11})
    np.testing.assert_array_equal(td.compile(out, **sizes)(a, b, d), want)
    np.testing.assert_array_equal(planned(out, sizes, parallel="i")(a, b, d), want)


def test_the_first_of_two_is_computed_row_by_row():
    x, w = td.Tensor("x", (1, 8, 32, 16), td.f32), td.Tensor("w", (3, 3, 16, 16), td.f32)
    v, conv, out = td.Tensor("v", (16, 32), td.f32), td.Func("conv"), td.Func("out")
    around = td.pad(x)
    conv[n, i, j, f] = td.sum(around[n, i + r - 1, j + s - 1, c] * w[r, s, c, f], axis=(r, s, c))
    out[n, i, j, g] = td.sum(td.maximum(conv[n, i, j, f], 0) * v[f, g], axis=f)
    schedule = td.Schedule(out.with_shape(1, 8, 32, 32))
    td.recipes.conv(schedule["out"], machine=WIDE)
    assert "conv_cache = alloc(f32, [1, 1, 32, 16])" in str(td.compile(schedule).loops())


@pytest.mark.parametrize("build", [images_last, images_first])
@pytest.mark.parametrize("empty", ["N", "C", "F", "W"])
def test_nothing_to_do(build, empty):
    sizes = {"N": 2, "H": 3, "W": 9, "C": 8, "F": 16} | {empty: 0}
    x = np.ones([sizes[k] for k in "NHWC"], np.float32)
    w = np.ones((3, 3, sizes["C"], sizes["F"]), np.float32)
    shape = tuple(sizes[k] for k in "NHWF")
    if build is images_first:
        x, w = x.transpose(0, 3, 1, 2).copy(), w.transpose(3, 2, 0, 1).copy()
        shape = tuple(sizes[k] for k in "NFHW")
    for run in (td.compile(build()), planned(build())):
        out = run(x, w)
        assert out.shape == shape
        assert not out.any()


@pytest.mark.parametrize("empty", ["N", "C", "F", "G"])
def test_nothing_to_do_in_one_nest(empty):
    sizes = {"N": 2, "H": 3, "W": 40, "C": 8, "F": 8, "G": 8} | {empty: 0}
    x, w, v = (
        td.Tensor("x", ("N", "C", "H", "W"), td.f32),
        td.Tensor("w", ("F", "C", 3, 3), td.f32),
        td.Tensor("v", ("G", "F"), td.f32),
    )
    around, conv, out = td.pad(x), td.Func("conv"), td.Func("out")
    conv[n, f, i, j] = td.sum(around[n, c, i + r - 1, j + s - 1] * w[f, c, r, s], axis=(c, r, s))
    out[n, g, i, j] = td.sum(td.maximum(conv[n, f, i, j], 0) * v[g, f], axis=f)
    out = out.with_shape("N", "G", "H", "W")
    arrays = [
        np.ones([sizes[k] for k in "NCHW"], np.float32),
        np.ones((sizes["F"], sizes["C"], 3, 3), np.float32),
        np.ones((sizes["G"], sizes["F"]), np.float32),
    ]
    got = td.compile(out)(*arrays)
    assert got.shape == tuple(sizes[k] for k in "NGHW")
    assert not got.any()


def test_nan_and_infinity_stay_where_they_are(rng):
    x, w = small(rng, 1, 6, 9, 8), np.ones((3, 3, 8, 16), np.float32)
    x[0, 1, 2, 3], x[0, 4, 7, 0] = np.nan, np.inf
    got = planned(images_last())(x, w)
    np.testing.assert_array_equal(got, expected_last(x, w))


def test_stages_of_other_kinds_are_left_alone():
    a, b, product, copied = (
        td.Tensor("a", (9, 9), td.f32),
        td.Tensor("b", (9, 9), td.f32),
        td.Func("p"),
        td.Func("q"),
    )
    product[i, j] = td.sum(a[i, c] * b[c, j], axis=c)
    copied[i, j] = a[i, j] + 1
    for func in (product, copied):
        schedule = td.Schedule(func)
        with pytest.raises(td.ScheduleError, match="conv is not for"):
            td.recipes.conv(schedule[func], machine=WIDE)
        assert not schedule.directives


def test_threads_share_what_is_even():
    x, w, out = (
        td.Tensor("x", (5, 42, 22, 64), td.f32),
        td.Tensor("w", (3, 3, 64, 32), td.f32),
        td.Func("out"),
    )
    out[n, i, j, f] = td.sum(x[n, i + r, j + s, c] * w[r, s, c, f], axis=(r, s, c))
    tiles = td.recipes.conv(td.Schedule(out)["out"], machine=WIDE)
    # 5 images would leave a thread without work for a fifth of the time
    assert tiles.parallel == "i"

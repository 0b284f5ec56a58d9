"""What is done to each sum stays in the tiles of the sums."""

import numpy as np
import pytest

import tdsl as td


def convolution_and(function):
    n, c, f, r, s, y, x = td.vars("n c f r s y x")
    data = td.Tensor("data", (2, 16, 14, 14), td.f32)
    weights = td.Tensor("weights", (16, 16, 3, 3), td.f32)
    around, conv, out = td.pad(data), td.Func("conv"), td.Func("out", shape=(2, 16, 7, 7))
    window = around[n, c, 2 * y + r - 1, 2 * x + s - 1] * weights[f, c, r, s]
    conv[n, f, y, x] = td.sum(window, axis=(c, r, s))
    out[n, f, y, x] = function(conv[n, f, y, x])
    return out


@pytest.mark.parametrize(
    "function",
    [lambda v: td.maximum(v, 0), lambda v: 0.5 * v * (1 + td.erf(v * 0.7))],
    ids=["read once", "read twice"],
)
def test_vectors_are_those_of_the_sum_alone(function, rng):
    """They were taken along memory, where a stride made each a gather: three times slower."""
    data = rng.standard_normal((2, 16, 14, 14), dtype=np.float32)
    weights = rng.standard_normal((16, 16, 3, 3), dtype=np.float32)
    f = td.compile(convolution_and(function), target="cpu:avx2")
    alone = td.compile(convolution_and(lambda v: v + 1), target="cpu:avx2")
    plain = td.compile(convolution_and(lambda v: v), target="cpu:avx2")
    for compiled in (f, alone, plain):
        assert "vectors along f of weights" in str(compiled.explain())
    near = np.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    near = np.lib.stride_tricks.sliding_window_view(near, (3, 3), (2, 3))[:, :, ::2, ::2]
    sums = np.einsum("ncyxrs,fcrs->nfyx", near, weights)
    np.testing.assert_allclose(
        td.compile(convolution_and(lambda v: v * 2))(data, weights), sums * 2, rtol=1e-3, atol=1e-3
    )


def test_windows_read_twice_are_summed_in_tiles():
    """They were summed line by line in memory."""
    c, y, x, r, s = td.vars("c y x r s")
    data, weights = td.Tensor("data", (8, 24, 24), td.f32), td.Tensor("w", (8, 3, 3), td.f32)
    around, sums, out = td.pad(data), td.Func("sums"), td.Func("out", shape=(8, 24, 24))
    sums[c, y, x] = td.sum(around[c, y + r - 1, x + s - 1] * weights[c, r, s], axis=(r, s))
    out[c, y, x] = sums[c, y, x] * td.sigmoid(sums[c, y, x])
    assert "out: conv, with sums inside" in str(td.compile(out, target="cpu:avx2").explain())


def test_products_that_a_line_needs_no_tile_of_are_computed_first():
    """Each channel of the filter read all channels of the picture again: three times slower."""
    c, f, y, x, r, s = td.vars("c f y x r s")
    data, narrow = td.Tensor("data", (24, 56, 56), td.f32), td.Tensor("narrow", (144, 24), td.f32)
    weights, wide, out = td.Tensor("w", (144, 3, 3), td.f32), td.Func("wide"), td.Func("out")
    wide[f, y, x] = td.maximum(td.sum(narrow[f, c] * data[c, y, x], axis=c), 0)
    around = td.pad(wide, shape=(144, 56, 56))
    out[f, y, x] = td.sum(around[f, y + r - 1, x + s - 1] * weights[f, r, s], axis=(r, s))
    shown = str(td.compile(out.with_shape(144, 56, 56), target="cpu:avx2").explain())
    assert "wide_sum: matmul" in shown
    assert "out: conv" in shown

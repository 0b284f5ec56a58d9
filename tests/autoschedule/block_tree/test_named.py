"""Tiles of products whose rows or columns are several variables, as those of 1 x 1 convolutions."""

import numpy as np
import pytest

import tdsl as td
from tdsl.autoschedule.block_tree.tree import BlockTree
from tdsl.autoschedule.recipes.blocks import on_blocks
from tdsl.lang.interp import interpret
from tdsl.target import Target

n, o, c, h, w, b, i, j, k = td.vars("n o c h w b i j k")


def planes(batch, filters, channels, rows, columns, step=1):
    """Pictures in planes, perhaps every other point of them."""
    x = td.Tensor("x", (batch, channels, step * rows, step * columns), td.f32)
    weights, y = td.Tensor("weights", (filters, channels), td.f32), td.Func("y")
    terms = weights[o, c] * x[n, c, step * h, step * w]
    y[n, o, h, w] = td.sum(terms, axis=c)
    return y.with_shape(batch, filters, rows, columns)


def channels_last(batch, filters, channels, rows, columns):
    x = td.Tensor("x", (batch, rows, columns, channels), td.f32)
    weights, y = td.Tensor("weights", (channels, filters), td.f32), td.Func("y")
    y[n, h, w, o] = td.sum(weights[c, o] * x[n, h, w, c], axis=c)
    return y


def agrees(s, rng):
    given = {
        t.name: rng.integers(-3, 4, [e.value for e in t.shape]).astype(np.float32) for t in s.program.inputs
    }
    got = td.emulate(td.compile(s, target="cuda"))(**given)
    (want,) = interpret(s.program, given)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("make", [planes, channels_last])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 7, 11, 5, 3), (2, 24, 16, 8, 8)])
def test_convolutions_of_points_at_any_size(rng, make, sizes):
    y = make(*sizes)
    s = td.Schedule(y)
    td.recipes.block_tiles(s[y])
    agrees(s, rng)


def test_every_other_point(rng):
    y = planes(2, 5, 9, 7, 6, step=2)
    s = td.Schedule(y)
    td.recipes.block_tiles(s[y])
    agrees(s, rng)


@pytest.mark.parametrize("parts", [None, 2])
def test_an_epilogue_is_computed_in_registers(rng, parts):
    y, bias, z = planes(2, 9, 18, 5, 7), td.Tensor("bias", (9,), td.f32), td.Func("z")
    z[n, o, h, w] = td.maximum(y[n, o, h, w] + bias[o], 0)
    s = td.Schedule(z)
    plan = td.recipes.block_tiles(s[y], parts=parts)
    assert plan.epilogue == "z"
    agrees(s, rng)


def test_rows_of_batches_share_weights(rng):
    x, weights = td.Tensor("x", (5, 7, 20), td.f32), td.Tensor("weights", (20, 70), td.f32)
    y = td.Func("y")
    y[b, i, j] = td.sum(x[b, i, k] * weights[k, j], axis=k)
    s = td.Schedule(y)
    td.recipes.block_tiles(s[y])
    agrees(s, rng)


@pytest.mark.parametrize("make", [planes, channels_last])
def test_the_default_schedule_takes_tiles_for_pictures_and_moves_little(make):
    batch, filters, channels, rows, columns = sizes = (8, 128, 128, 56, 56)
    y = make(*sizes)
    assert isinstance(on_blocks(td.Schedule(y)[y]), BlockTree)
    least = 4 * (batch * rows * columns * (channels + filters) + channels * filters)
    s = td.Schedule(make(*sizes), target="cuda")
    assert s.traffic("global") < 2 * least


@pytest.mark.parametrize("arch, make", [("sm_80", planes), ("sm_90a", channels_last)])
def test_machine_code_of_pictures_spills_nothing(arch, make):
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    (kernel,) = td.compile(make(8, 64, 64, 28, 28), target=Target("cuda", arch=arch)).launch.kernels
    assert (kernel.spills, kernel.stack) == (0, 0)


def contraction(rows, columns, first, second):
    """A sum over two variables, which lie in another order in each tensor."""
    x, weights = (
        td.Tensor("x", (first, rows, second), td.f32),
        td.Tensor("weights", (second, columns, first), td.f32),
    )
    y = td.Func("y")
    y[i, j] = td.sum(x[k, i, c] * weights[c, j, k], axis=(k, c))
    return y


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (17, 19, 3, 5), (32, 16, 4, 8)])
def test_sums_over_two_variables(rng, sizes):
    y = contraction(*sizes)
    s = td.Schedule(y)
    td.recipes.block_tiles(s[y])
    agrees(s, rng)


def test_the_default_schedule_takes_tiles_for_sums_over_two_variables():
    y = contraction(128, 256, 8, 64)
    assert isinstance(on_blocks(td.Schedule(y)[y]), BlockTree)


@pytest.mark.parametrize("step", [1, 2])
def test_windows_with_zeros_around_pictures(rng, step):
    p, q = td.range("p", 0, 3), td.range("q", 0, 3)
    x = td.Tensor("x", (2, 5, 6 * step, 7 * step), td.f32)
    weights, y = td.Tensor("weights", (11, 5, 3, 3), td.f32), td.Func("y", shape=(2, 11, 6, 7))
    terms = weights[o, c, p, q] * td.pad(x)[n, c, step * h + p - 1, step * w + q - 1]
    y[n, o, h, w] = td.sum(terms, axis=(c, p, q))
    s = td.Schedule(y)
    td.recipes.block_tiles(s[y])
    agrees(s, rng)

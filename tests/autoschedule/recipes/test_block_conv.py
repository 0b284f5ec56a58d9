"""Convolutions on a GPU: right in both orders of memory, at every size, with what follows in registers."""

import numpy as np
import pytest

import tdsl as td
from tdsl.codegen.gpu.launches import launches_of
from tdsl.machine.devices import describe_gpu
from tests.codegen.cuda.programs import kernel_of

n, o, c, y, x, p, q = td.vars("n o c y x p q")


def filters_first(batch, channels, filters, height, width, window=3):
    a = td.Tensor("a", (batch, channels, height + window - 1, width + window - 1), td.f32)
    w, f = td.Tensor("w", (filters, channels, window, window), td.f32), td.Func("f")
    f[n, o, y, x] = td.sum(a[n, c, y + p, x + q] * w[o, c, p, q], axis=(c, p, q))
    return f


def filters_last(batch, channels, filters, height, width, window=3):
    a = td.Tensor("a", (batch, height + window - 1, width + window - 1, channels), td.f32)
    w, f = td.Tensor("w", (window, window, channels, filters), td.f32), td.Func("f")
    f[n, y, x, o] = td.sum(a[n, y + p, x + q, c] * w[p, q, c, o], axis=(p, q, c))
    return f


def lines(batch, channels, filters, height, width, window=3):
    """Of one dimension."""
    a = td.Tensor("a", (batch, channels, width + window - 1), td.f32)
    w, f = td.Tensor("w", (filters, channels, window), td.f32), td.Func("f")
    f[n, o, x] = td.sum(a[n, c, x + q] * w[o, c, q], axis=(c, q))
    return f


def with_steps(batch, channels, filters, height, width):
    """Every other point, and what is made of the sums alone."""
    a = td.Tensor("a", (batch, channels, 2 * height + 1, 2 * width + 1), td.f32)
    w, bias = (
        td.Tensor("w", (filters, channels, 3, 3), td.f32),
        td.Tensor("bias", (filters,), td.f32),
    )
    f, g = td.Func("f"), td.Func("g")
    f[n, o, y, x] = td.sum(a[n, c, 2 * y + p, 2 * x + q] * w[o, c, p, q], axis=(c, p, q))
    g[n, o, y, x] = td.maximum(f[n, o, y, x] + bias[o], 0)
    return g


PROGRAMS = {"first": filters_first, "last": filters_last, "lines": lines, "steps": with_steps}


def meaning(name, a, w, bias=None):
    """The convolution as NumPy sees it."""
    if name == "lines":
        windows = np.lib.stride_tricks.sliding_window_view(a, w.shape[-1], -1)
        return np.einsum("ncxq,ocq->nox", windows, w)
    if name == "last":
        windows = np.lib.stride_tricks.sliding_window_view(a, w.shape[:2], (1, 2))
        return np.einsum("nyxcpq,pqco->nyxo", windows, w)
    windows = np.lib.stride_tricks.sliding_window_view(a, w.shape[2:], (2, 3))
    if name == "steps":
        f = np.einsum("ncyxpq,ocpq->noyx", windows[:, :, ::2, ::2], w)
        return np.maximum(f + bias[:, None, None], 0)
    return np.einsum("ncyxpq,ocpq->noyx", windows, w)


def agrees(name, s: td.Schedule, rng) -> None:
    arrays = {
        t.name: rng.integers(-2, 3, [e.value for e in t.shape]).astype(np.float32) for t in s.program.inputs
    }
    got = td.emulate(td.compile(s, target="cuda"))(**arrays)
    np.testing.assert_array_equal(got, meaning(name, **arrays))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sizes", [(2, 3, 16, 5, 33), (1, 10, 70, 4, 32), (1, 8, 17, 7, 16)])
def test_convolutions_at_any_size(rng, name, sizes):
    f = PROGRAMS[name](*sizes)
    s = td.Schedule(f)
    plan = td.recipes.block_conv(s["f"])
    assert plan.epilogue == ("g" if name == "steps" else "")
    agrees(name, s, rng)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 9, 20, 6, 20)])
def test_the_default_schedule_of_convolutions(rng, name, sizes):
    f = PROGRAMS[name](*sizes)
    agrees(name, td.Schedule(f), rng)


@pytest.mark.parametrize("window", [1, 5])
def test_other_windows(rng, window):
    f = filters_first(1, 6, 20, 5, 20, window)
    s = td.Schedule(f)
    assert td.recipes.block_conv(s[f])
    agrees("first", s, rng)


@pytest.mark.in_part(3)
@pytest.mark.parametrize("window", [3, 5, 11])
@pytest.mark.parametrize("arch", ["sm_75", "sm_89", "sm_90a"])
def test_tiles_of_both_operands_fit(window, arch):
    f = filters_first(1, 64, 64, 64, 64, window)
    s = td.Schedule(f, target=td.Target("cuda", arch=arch))
    td.recipes.block_conv(s[f])
    launches = launches_of(kernel_of(s)).launches
    assert max(x.shared for x in launches) <= describe_gpu(arch).level("shared").bytes


def test_what_is_no_convolution_is_left_as_it_is():
    a, w, f = td.Tensor("a", (64, 64), td.f32), td.Tensor("w", (64, 64), td.f32), td.Func("f")
    f[y, x] = td.sum(a[y, c] * w[c, x], axis=c)
    s = td.Schedule(f)
    with pytest.raises(td.ScheduleError, match="block_conv is not for"):
        td.recipes.block_conv(s[f])
    assert not s.directives
